"""Which torch device a run computes on."""

from __future__ import annotations

from plsh_cli.errors import UserError


def chosen_device(name: str, double: str | None = None) -> str:
    """The torch device that a configured one means: auto is the fastest there is.

    double: what needs double precision, which mps does not have, as a clause for the message; None: nothing does.
    Raises UserError for a device that is not there. Of cpu nothing is asked, so that torch is not imported.
    """
    if name == "cpu":
        return name
    if name == "mps" and double is not None:
        raise UserError("device", name, f"has no double precision, {double}; use cpu or cuda", "--device")
    import torch

    mps, count = torch.backends.mps.is_available(), torch.cuda.device_count()
    if name == "auto":
        return "cuda" if count else "mps" if mps and double is None else "cpu"
    if name == "mps":
        if not mps:
            raise UserError("device", name, "is not there; use auto or cpu", "--device")
    elif int(name.partition(":")[2] or 0) >= count:
        raise UserError("device", name, f"{count} CUDA devices were found; use auto or cpu", "--device")
    return name
