"""From a method and a case to something that can be called and timed: inputs, preparation, one pass.

Inputs q, k, v and the gradient of the output are normal with mean 0 and standard deviation 1, drawn in float32 from the
stream (seed, "qkv", n) and rounded to the case's type.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from plsh_cli.attention import Plsh, attention, choose_backend
from plsh_cli.attention.api import why_not
from plsh_cli.attention.bias import Bias
from plsh_cli.attention.cheaper import exact_when_cheaper
from plsh_cli.config.schema.biases import DrawsBias
from plsh_cli.experiments import bench_attention_competitors as competitors
from plsh_cli.experiments.bench_attention_competitors import CannotRun
from plsh_cli.experiments.bench_attention_plan import Case, Method, bias_section, too_large
from plsh_cli.experiments.biases import attention_bias
from plsh_cli.positional.streams import generator


@dataclass(frozen=True)
class Setup:
    """What all methods of a run share. sigma: tokens, one per head."""

    draws: DrawsBias
    sigma: list[float]
    seed: int
    device: str
    dense_gib: float
    exact_when_cheaper: bool


@dataclass(frozen=True)
class Inputs:
    """q, k, v and the gradient of the output, (b, h, n, d) each."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor


@dataclass(frozen=True)
class Ready:
    """A method prepared for a case. ran: the backend that runs. bias: what it computes. exact_heads: the heads whose
    draws exact ALiBi has replaced. prepare_seconds: draws and their table, mask, or compilation."""

    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    ran: str
    bias: Bias
    prepare_seconds: float
    exact_heads: list[int] = field(default_factory=list)


def make_inputs(case: Case, setup: Setup) -> Inputs:
    """The case's inputs, the same for every type and pass of one length."""
    stream = generator(setup.seed, "qkv", case.n)
    shape, made = (case.batch, case.heads, case.n, case.head_dim), []
    for _ in range(4 if case.passes != "forward" else 3):
        values = torch.from_numpy(stream.standard_normal(shape, dtype="float32"))
        made.append(values.to(device=setup.device, dtype=getattr(torch, case.dtype)))
        del values
    return Inputs(*made, *([made[0]] if len(made) == 3 else []))


def prepare(method: Method, case: Case, setup: Setup, inputs: Inputs) -> Ready:
    """Everything that is done once for many calls, timed as a whole. CannotRun, with the reason, where it cannot be."""
    if reason := too_large(method, case, setup.dense_gib):
        raise CannotRun(reason)
    started = time.perf_counter()
    bias = attention_bias(bias_section(method, setup.draws), case.heads, case.n, setup.seed)
    if method.backend in ("sdpa_mask", "flex"):
        attend = _competitor(method, case, setup, inputs)
        return Ready(attend, method.backend, bias, time.perf_counter() - started)
    ran = choose_backend(inputs.q, bias, causal=case.causal) if method.backend == "auto" else method.backend
    replaced: list[int] = []
    if setup.exact_when_cheaper:
        counted_as = ran if ran in ("blocks", "triton") else "fused"
        bias, replaced = exact_when_cheaper(bias, setup.sigma, case.n, case.causal, counted_as)
    if reason := why_not(ran, inputs.q, bias, causal=case.causal):
        raise CannotRun(f"backend {ran}: {reason}")
    attend = functools.partial(attention, bias=bias, causal=case.causal, backend=ran)
    drawn = time.perf_counter() - started
    tables = _table_seconds(attend, inputs) if isinstance(bias, Plsh) and ran in ("fused", "triton") else 0.0
    return Ready(attend, ran, bias, drawn + tables, replaced)


def one_pass(ready: Ready, case: Case, inputs: Inputs) -> torch.Tensor:
    """The output of one call, and its gradients in q, k and v where the case asks for them; waits until it is done."""
    tensors = [inputs.q, inputs.k, inputs.v]
    if case.passes == "forward":
        with torch.no_grad():
            out = ready.attend(*tensors)
    else:
        tensors = [x.detach().requires_grad_() for x in tensors]
        out = ready.attend(*tensors)
        torch.autograd.grad(out, tensors, inputs.d_out)
        out = out.detach()
    wait(inputs.q.device.type)
    return out


def wait(device: str) -> None:
    """Return once the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _competitor(method: Method, case: Case, setup: Setup, inputs: Inputs) -> Callable[..., torch.Tensor]:
    if method.backend == "sdpa_mask":
        return competitors.sdpa_with_mask(setup.sigma, case.n, causal=case.causal, like=inputs.q)
    if case.passes != "forward" and inputs.q.device.type == "cpu":
        raise CannotRun("FlexAttention is forward only on the CPU")
    attend = competitors.flex(setup.sigma, method.eps, case.n, causal=case.causal, like=inputs.q)
    with torch.no_grad():
        attend(inputs.q, inputs.k, inputs.v)
    return attend


def _table_seconds(attend: Callable[..., torch.Tensor], inputs: Inputs) -> float:
    """How long the table of the draws takes, which the first call makes: a call of one query, less another one."""
    seconds = []
    with torch.no_grad():
        for _ in range(2):
            started = time.perf_counter()
            attend(inputs.q[:, :, -1:], inputs.k, inputs.v)
            wait(inputs.q.device.type)
            seconds.append(time.perf_counter() - started)
    return max(0.0, seconds[0] - seconds[1])
