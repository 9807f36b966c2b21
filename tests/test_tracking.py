"""Metrics reach metrics.jsonl always and a real W&B run offline; online trouble is one message, early."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from toy import TOY


def _history(run: Path) -> list[dict]:
    """What the offline W&B file of a run holds, read back by W&B's own reader."""
    (segment,) = (run / "wandb").glob("offline-run-*")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(segment)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def test_an_offline_run_holds_config_metrics_table_and_figures(plsh, only_run):
    done = plsh("approx", *TOY, "logger.tags=[toy]")
    assert done.code == 0, done.text
    run = only_run()
    assert f"wandb sync {next((run / 'wandb').glob('offline-run-*'))}" in done.text
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    text = json.dumps(_history(run))
    assert all(str(line["spectral_error"]) in text for line in lines)
    assert "num_samples" in text
    media = {file.suffix for file in (run / "wandb").rglob("*") if file.is_file() and "media" in file.parts}
    assert {".png", ".json"} <= media, "figures and table"


def test_disabled_writes_metrics_and_no_wandb_folder(plsh, only_run):
    assert plsh("approx", *TOY, "logger.mode=disabled").code == 0
    run = only_run()
    assert (run / "metrics.jsonl").read_text().count("\n") >= 2
    assert not (run / "wandb").exists()


def test_online_without_a_key_is_one_message_before_any_computation(plsh, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    done = plsh("approx", *TOY, "logger.mode=online")
    assert done.code == 2
    assert "needs a W&B key" in done.text
    assert "logger.mode=offline" in done.text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["refuses", "hangs", "is no W&B"])
def test_online_with_a_server_that_does_not_work_is_one_message(kind, tmp_path):
    server = _server(kind)
    port = server.server_port if server else 9
    command = [sys.executable, "-m", "plsh_cli", "approx", *TOY, "logger.mode=online"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "0" * 40,
        "WANDB_BASE_URL": f"http://127.0.0.1:{port}",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60, check=False
    )
    if server:
        server.server_close()
    assert done.returncode == 2, done.stderr
    assert "plsh: logger.mode=online" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/*")), "nothing half-written"


def _server(kind: str) -> HTTPServer | None:
    if kind == "refuses":
        return None

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    if kind == "is no W&B":
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
