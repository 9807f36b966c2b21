"""Held-out text stays held out: a run goes on, and is scored, on the text that it was begun with."""

from __future__ import annotations

import json
import shutil

import pytest
from training_toy import own_cache, runs, same, stopped, texts, words

from plsh_cli.config import compose
from plsh_cli.experiments import resume, train_text


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return own_cache(tmp_path_factory.mktemp("cache") / "cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("PLSH_CACHE", shared_cache)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The words of a run's command, its text, and the run, which nobody changes."""
    from click.testing import Result
    from typer.testing import CliRunner

    from plsh_cli.cli import app

    folder = tmp_path_factory.mktemp("trained")
    corpus = texts(folder / "texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLSH_CACHE", own_cache(folder / "cache"))
        patch.chdir(folder)
        done: Result = CliRunner().invoke(
            app, words(corpus, 6, "train.save_every=2", "train.best=false", "train.keep=9")
        )
    assert done.exit_code == 0, done.output
    (run,) = runs(folder)
    return corpus, run


@pytest.fixture
def begun(trained, tmp_path):
    """Text of its own, and a run on it that was killed after step 4, a copy of the one that nobody changes."""
    shutil.copytree(trained[0], tmp_path / "texts")
    copy = stopped(trained[1], tmp_path, 4)
    config = (copy / "config.yaml").read_text().replace(str(trained[0]), str(tmp_path / "texts"))
    (copy / "config.yaml").write_text(config)
    overrides = (copy / "overrides.txt").read_text().replace(str(trained[0]), str(tmp_path / "texts"))
    (copy / "overrides.txt").write_text(overrides)
    return tmp_path / "texts", copy


def held_out(run):
    return json.loads((run / train_text.NAME).read_text())["held_out"]["names"]


def change_held_out(corpus, run):
    (corpus / held_out(run)[0]).write_text("other words " * 60)


def change_training(corpus, run):
    other = next(path for path in sorted(corpus.iterdir()) if path.name not in held_out(run))
    other.write_text(other.read_text() + " more")


def rename(corpus, run):
    (corpus / held_out(run)[0]).rename(corpus / "renamed.txt")


def add(corpus, run):
    (corpus / "99.txt").write_text("one more " * 60)


CHANGES = [change_held_out, change_training, rename, add]


def test_the_record_is_there_from_the_start(begun):
    _, run = begun
    record = json.loads((run / train_text.NAME).read_text())
    assert not (run / "result.json").exists()
    assert list(record["documents"]) == record["held_out"]["names"]
    assert {"store", "tokenizer", "corpus", "train"} <= set(record)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("more", [[], ["resume_force=true"]])
def test_resume_refuses_other_text_and_leaves_the_run_as_it_was(plsh, begun, change, more):
    corpus, run = begun
    change(corpus, run)
    before = (run / "status.json").read_text()
    done = plsh("train", "--resume", str(run), *more)
    assert done.code == 2
    assert "the files of the corpus changed" in done.text
    assert "put the text back, or start a new run" in done.text
    assert (run / "status.json").read_text() == before


def test_the_same_text_elsewhere_goes_on(plsh, begun, trained, tmp_path):
    corpus, run = begun
    shutil.move(corpus, tmp_path / "moved")
    done = plsh("train", "--resume", str(run), f"data.path={tmp_path / 'moved'}", "resume_force=true")
    assert done.code == 0, done.text
    same(trained[1], run)


def test_another_split_of_the_same_files_is_refused_with_the_names(plsh, begun):
    """A forced seed would hold out what has trained."""
    _, run = begun
    done = plsh("train", "--resume", str(run), "seed=3", "resume_force=true")
    assert done.code == 2
    assert "held out are no longer" in done.text
    assert "other training documents" in done.text


@pytest.mark.parametrize("change", CHANGES)
def test_eval_refuses_other_text_before_anything_is_written(plsh, trained, tmp_path, change):
    shutil.copytree(trained[0], tmp_path / "texts")
    run = tmp_path / "runs" / "train" / "copy"
    shutil.copytree(trained[1], run)
    (run / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace(str(trained[0]), str(tmp_path / "texts"))
    )
    arguments = ["eval", str(run), "device=cpu", "logger.mode=disabled", "eval.lengths=[31]", "eval.max_tokens=62"]
    assert plsh(*arguments).code == 0
    change(tmp_path / "texts", run)
    count = len(list(tmp_path.glob("runs/eval/*")))
    for more in ([], ["--dry-run"]):
        done = plsh(*arguments, *more)
        assert done.code == 2
        assert "the files of the corpus changed" in done.text
        assert "eval.held_out=false" in done.text
    assert len(list(tmp_path.glob("runs/eval/*"))) == count
    other = plsh(*arguments, "eval.held_out=false", "data=text", f"data.path={tmp_path / 'texts'}")
    assert other.code == 0, other.text


def test_eval_names_the_documents_where_the_record_and_the_split_differ(plsh, trained, tmp_path):
    """As under another version of the split: the files are the same, the held-out documents are not."""
    run = tmp_path / "runs" / "train" / "copy"
    shutil.copytree(trained[1], run)
    record = json.loads((run / train_text.NAME).read_text())
    first, second, *rest = record["documents"]
    record["documents"] = {"gone.txt": "0", second: "1", **{name: record["documents"][name] for name in rest}}
    record["held_out"]["sha256"] = "another"
    (run / train_text.NAME).write_text(json.dumps(record))
    done = plsh("eval", str(run), "device=cpu", "logger.mode=disabled", "eval.lengths=[31]", "eval.max_tokens=62")
    assert done.code == 2
    assert f"held out are no longer gone.txt, now also {first}, with another text {second}" in done.text


def test_a_finished_run_on_other_text_is_not_reused(trained, tmp_path, monkeypatch):
    """What a study, a sweep and their jobs ask; before, the configuration alone decided."""
    _, run = trained
    overrides = (run / "overrides.txt").read_text().splitlines()
    config = compose.compose("train", [*overrides, f"out={run.parent.parent}"])
    assert resume.finished(config).path == run
    record = json.loads((run / train_text.NAME).read_text())
    other = {**record, "corpus": {**record["corpus"], "sha256": "another"}}
    monkeypatch.setattr(train_text, "recorded", lambda path: other)
    assert resume.finished(config) is None


@pytest.mark.parametrize(
    ("files", "settings", "said"),
    [
        ({}, ["data.path=none/*.txt"], "data.path"),
        ({"a.txt": b"", "b.txt": b""}, [], "the corpus is empty"),
        ({"a.txt": b"text"}, [], "two files with different texts"),
        ({"a.txt": b"some text", "b.txt": b"some\r\ntext"}, [], "two files with different texts"),
        ({"a.txt": b"text", "b.txt": b"caf\xe9"}, [], "is not UTF-8"),
        ({"a.txt": b"text", "b.txt": b"more"}, ["model.architecture.vocab_size=200"], "must be at least 257"),
        ({}, ["data=sotu", "data.path=x.txt"], "belongs to data=text"),
        ({}, ["data=fineweb_edu", "train.steps=null", "train.epochs=1", "data.path=null"], "give train.steps"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_text_and_vocabulary_that_cannot_be_are_refused_before_anything_is_written(
    plsh, tmp_path, files, settings, said, dry
):
    (tmp_path / "mine").mkdir()
    for name, content in files.items():
        (tmp_path / "mine" / name).write_bytes(content)
    done = plsh(*words(tmp_path / "mine", 2, *settings), *dry)
    assert done.code == 2, done.text
    assert said in done.text
    assert not (tmp_path / "runs").exists()
