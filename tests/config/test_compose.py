"""Every configuration composes; every wrong one ends in one message naming the field, the value and what is allowed."""

from __future__ import annotations

import pytest

from plsh_cli.config import catalog, check, compose
from plsh_cli.config.schema import FLAGS, SCHEMAS
from plsh_cli.errors import PlshError


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_command_composes_and_holds_exactly_the_keys_of_its_schema(command):
    plain = compose.load(command, [])
    config = check.validate(command, plain)
    assert config.command == command
    sigma = plain.get("train", {}).get("sigma")
    if sigma is not None:
        plain["bias"]["sigma"] = [sigma]  # what it is there for
    assert plain == config.model_dump(mode="python"), "conf/ and schema must agree to the value, without coercion"


@pytest.mark.parametrize("preset", catalog.experiments(), ids=lambda preset: preset.name)
def test_every_experiment_composes_for_its_command(preset):
    assert preset.command in SCHEMAS, f"{preset.name}.yaml needs a line '# for: <command>'"
    assert preset.description
    changed = compose.compose(preset.command, [f"experiment={preset.name}"])
    assert changed != compose.compose(preset.command, [])


def test_every_group_option_composes_in_every_command_that_has_the_group():
    seen = 0
    for command, schema in SCHEMAS.items():
        for group, options in compose.group_options(command, None).items():
            if group in schema.model_fields:
                for option in options:
                    compose.compose(command, [f"{group}={option}"])
                    seen += 1
    assert seen >= len(SCHEMAS)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["approx.num_samples=[0]"], ["approx.num_samples[0] = 0", "at least 1", "--s"]),
        (["approx.num_samples=[]"], ["approx.num_samples", "at least one"]),
        (["approx.num_samples=[abc]"], ["approx.num_samples[0] = abc", "number"]),
        (["approx.num_samples=[10,10]"], ["repeat", "10"]),
        (["approx.num_samples=[10,,20]"], ["approx.num_samples=[10,,20]"]),
        (["approx.num_samples=[1.5]"], ["1.5", "whole number"]),
        (["bias.sigma=[-1]"], ["bias.sigma[0] = -1", "at least 1e-30", "--sigma"]),
        (["bias.sigma=[nan]"], ["bias.sigma[0] = nan"]),
        (["bias.sigma=[inf]"], ["bias.sigma[0] = inf", "at most 1e+30"]),
        (["bias.sigma=[0]"], ["bias.sigma[0] = 0", "at least 1e-30"]),
        (["approx.n=0"], ["approx.n[0] = 0", "at least 1", "--n"]),
        (["approx.seeds=true"], ["approx.seeds = True", "true/false"]),
        (["seed=-1"], ["seed = -1", "at least 0"]),
        (["approx.delta=1"], ["approx.delta = 1", "less than 1"]),
        (["approx.nn=3"], ["unknown key approx.nn", "approx.n"]),
        (["aprox.heads=3"], ["unknown key aprox.heads", "approx.heads"]),
        (["+foo=1"], ["unknown key foo"]),
        (["bias=foo"], ["bias = foo", "draws"]),
        (["command=attn_error"], ["command = attn_error", "approx"]),
        (["approx.seeds=1e9"], ["approx.seeds", "at most"]),
        (["bias=null"], ["bias = None", "draws"]),
        (["experiment=paper_matrx"], ["experiment = paper_matrx", "paper_matrix"]),
        (["approx.seeds=3", "approx.seeds=4"], ["approx.seeds is given twice"]),
        (["~logger"], ["logger cannot be deleted", "logger.mode=disabled"]),
        (["~approx.n"], ["approx.n cannot be deleted"]),
        (["approx.seeds=3,4"], ["--multirun"]),
        (["approx={n: 3}"], ["approx is a section"]),
        (["20"], ["stray argument '20'", "key=value"]),
        (["logger.mode=on"], ["logger.mode"]),
        (["device=gpu"], ["device = gpu", "cuda:N"]),
        (["name=../x"], ["name = ../x"]),
        (["bias.kernel=power", "bias.p=[1.5]"], ["bias.p[0] = 1.5", "at most 1"]),
        (["bias.kernel=table"], ["bias.table"]),
        (["bias.kernel=table", "bias.table=[1,0.5]"], ["bias.pitch=integer"]),
        (["bias.kernel=log", "bias.sigma=[2]"], ["sigma does not belong to kernel=log", "a, b"]),
        (["bias.a=[3]"], ["a does not belong to kernel=alibi", "sigma"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_message(overrides, words):
    with pytest.raises(PlshError) as caught:
        compose.compose("approx", overrides)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    for word in words:
        assert word in message


def test_flags_are_only_sugar():
    flags = {"--s": "10,20", "--n": "1e3", "--sigma": "2,16", "--seeds": "3", "--out": "my runs/it's"}
    sugar = compose.flag_overrides("approx", flags)
    assert sugar[:4] == ["approx.num_samples=[10,20]", "approx.n=[1e3]", "bias.sigma=[2,16]", "approx.seeds=3"]
    config = compose.compose("approx", sugar)
    assert (config.approx.num_samples, config.approx.n, config.bias.sigma) == ([10, 20], [1000], [2.0, 16.0])
    assert config.out == "my runs/it's"


@pytest.mark.parametrize(
    "text", ["plain", "with space", "it's", "back\\slash", "back\\'quote", "tail\\", "a,b", "{x}", "[y]", "k=v", "${z}"]
)
def test_quoting_survives_the_override_grammar(text):
    assert compose.compose("approx", [f"out={compose.quote(text)}"]).out == text


@pytest.mark.parametrize("text", ["10,,20", "10,", ",", ""])
def test_stray_commas_are_an_error(text):
    with pytest.raises(PlshError, match="--s"):
        compose.flag_overrides("approx", {"--s": text})


def test_every_flag_leads_to_a_key_of_the_schema():
    for command, flags in FLAGS.items():
        assert set(flags.values()) <= set(check.keys(SCHEMAS[command]))


def test_composing_twice_and_inside_another_composition():
    from hydra.core.global_hydra import GlobalHydra

    first = compose.compose("approx", ["seed=0"])
    with compose.hydra_context():
        inner = compose.compose("approx", ["seed=0"])
        assert GlobalHydra.instance().is_initialized()
    assert not GlobalHydra.instance().is_initialized()
    assert first == inner == compose.compose("approx", ["seed=0"])


def test_the_config_hash_sees_science_and_nothing_else():
    base = compose.config_hash(compose.compose("approx", []))
    assert base == compose.config_hash(
        compose.compose("approx", ["out=elsewhere", "name=other", "logger.mode=disabled"])
    )
    assert base != compose.config_hash(compose.compose("approx", ["seed=1"]))
    assert base != compose.config_hash(compose.compose("approx", ["approx.num_samples=[10,20]"]))


def test_a_scalar_is_a_list_of_one_where_a_list_is_expected():
    assert compose.compose("approx", ["approx.n=127"]).approx.n == [127]


def test_the_users_own_folder_adds_experiments(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\napprox:\n  heads: 6\n")
    assert compose.compose("approx", ["experiment=mine"], tmp_path).approx.heads == 6
    with pytest.raises(PlshError, match="experiment = mine"):
        compose.compose("approx", ["experiment=mine"])
    (tmp_path / "experiment" / "bare.yaml").write_text("name: bare\n")
    with pytest.raises(PlshError, match="@package _global_"):
        compose.compose("approx", ["experiment=bare"], tmp_path)
    with pytest.raises(PlshError, match="--config-dir"):
        compose.compose("approx", [], tmp_path / "absent")


def test_an_experiment_of_another_command_is_refused():
    with pytest.raises(PlshError, match="approx"):
        compose.compose("bench_matrix", ["experiment=paper_matrix"])


@pytest.mark.parametrize("command", ["train", "eval"])
def test_exact_alibi_never_stands_in_for_another_kernel(command):
    words = ["bias=plsh", "bias.kernel=log", "bias.exact_when_cheaper=true"]
    with pytest.raises(PlshError, match=r"exact_when_cheaper .* kernel=log"):
        compose.compose(command, words)
