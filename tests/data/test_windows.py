"""Windows cover the stream once, in an order that seed and epoch alone decide, and train a model through Trainer."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from data.text_cases import byte_store, random_documents
from torch.utils.data import DataLoader

from plsh_cli.data.splits import Selection, split_by_share, whole
from plsh_cli.data.windows import NO_LABEL, Windows, collate, document_offsets
from plsh_cli.errors import UserError
from plsh_cli.training.order import KeyedOrder

DOCUMENTS = random_documents(13, sizes=(1, 211))


@pytest.fixture
def store(tmp_path):
    return byte_store(DOCUMENTS, tmp_path)


def stream_of(selection):
    return np.concatenate([selection.store.document(index) for index in selection.documents]).astype(np.int64)


def joined(windows, key):
    return np.concatenate([windows[index][key].numpy() for index in range(len(windows))])


@pytest.mark.parametrize("context", [1, 2, 7, 31, 127, 257])
@pytest.mark.parametrize("documents", [range(13), [0], [12], [0, 1, 2, 7, 8, 12], range(1, 13, 2)])
def test_an_epoch_has_every_token_once_except_the_stated_tail(store, context, documents):
    selection = Selection(store, np.array(documents))
    stream = stream_of(selection)
    context = min(context, len(stream) - 1)
    windows = Windows(selection, context)
    assert windows.tokens == len(stream) == selection.tokens
    assert windows.unused == (len(stream) - 1) % context
    kept = len(stream) - 1 - windows.unused
    assert np.array_equal(joined(windows, "input_ids"), stream[:kept])
    assert np.array_equal(joined(windows, "labels"), stream[1 : kept + 1])
    assert {tuple(windows[i]["input_ids"].shape) for i in range(len(windows))} == {(context,)}


def test_any_part_of_the_stream_reads_the_same(store):
    selection = Selection(store, np.array([0, 2, 3, 7, 11]))
    stream, windows = stream_of(selection), Windows(selection, 5)
    cuts = np.random.default_rng(0).integers(0, len(stream), (200, 2))
    for start, stop in np.sort(cuts, axis=1):
        if start < stop:
            assert np.array_equal(windows.read(start, stop), stream[start:stop])


def test_reading_copies_nothing_unless_documents_between_are_left_out(store):
    all_of_them = Windows(whole(store), 31)
    parts = [all_of_them.read(31 * i, 31 * i + 32) for i in range(len(all_of_them))]
    assert all(np.shares_memory(part, store.tokens) for part in parts)
    some = Selection(store, np.array([0, 2]))
    (first, second) = (len(store.document(0)), len(store.document(2)))
    gap = Windows(some, 1).read(0, first + second)
    assert not np.shares_memory(gap, store.tokens)


def test_windows_with_the_documents_they_hold(store):
    selection = Selection(store, np.array([1, 2, 3, 6, 9]))
    lengths = [len(store.document(i)) for i in selection.documents]
    owner = np.repeat(np.arange(5), lengths)
    stream = stream_of(selection)
    windows = Windows(selection, 37, document_mask=True)
    for index in range(len(windows)):
        item, at = windows[index], slice(37 * index, 37 * index + 37)
        assert np.array_equal(item["document_ids"], owner[at] - owner[at][0])
        assert np.array_equal(item["input_ids"], stream[at])
        after = slice(at.start + 1, at.stop + 1)
        wanted = np.where(owner[after] == owner[at], stream[after], NO_LABEL)
        assert np.array_equal(item["labels"], wanted)
        ends = item["input_ids"] == store.end_id
        assert (item["labels"][ends] == NO_LABEL).all()
    assert any(len(set(windows[i]["document_ids"].tolist())) > 2 for i in range(len(windows)))


def test_offsets_of_documents_as_attention_takes_them(store):
    assert document_offsets(torch.tensor([0, 0, 1, 2, 2, 2])).tolist() == [0, 2, 3, 6]
    assert document_offsets(torch.tensor([0])).tolist() == [0, 1]
    assert document_offsets(torch.tensor([4, 4])).dtype == torch.int32
    with pytest.raises(ValueError, match="one row"):
        document_offsets(torch.zeros(2, 3))


def test_attention_stays_within_the_documents_of_a_window(store):
    from plsh_cli.attention import NoBias, attention

    ids = Windows(whole(store), 127, document_mask=True)[4]["document_ids"]
    assert len(set(ids.tolist())) > 1
    q, k, v = torch.randn(3, 1, 2, 127, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = attention(q, k, v, bias=NoBias(), causal=True, cu_seqlens=document_offsets(ids))
    sees = (ids[:, None] == ids[None, :]) & torch.ones(127, 127, dtype=torch.bool).tril()
    wanted = torch.softmax((q @ k.mT / 5**0.5).masked_fill(~sees, -torch.inf), -1) @ v
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)


def test_the_order_is_the_seeds_and_the_epochs_alone(store):
    windows = Windows(whole(store), 7)

    def order(seed, epoch):
        made = KeyedOrder(len(windows), seed)
        made.set_epoch(epoch)
        return list(made)

    assert order(3, 1) == order(3, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 3) for epoch in (0, 1)}) == 4
    assert sorted(order(3, 1)) == list(range(len(windows)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_whichever_process_reads(store, workers):
    windows = Windows(whole(store), 31)
    context = "spawn" if workers else None
    loader = DataLoader(
        windows,
        3,
        sampler=KeyedOrder(len(windows), 1),
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context=context,
    )
    found = torch.cat([batch["input_ids"] for batch in loader])
    wanted = torch.stack([windows[index]["input_ids"] for index in KeyedOrder(len(windows), 1)])
    assert torch.equal(found, wanted)


def test_pickled_windows_are_small_and_the_same(store):
    windows = Windows(whole(store), 31)
    data = pickle.dumps(windows)
    assert len(data) < 2000
    assert torch.equal(pickle.loads(data)[2]["labels"], windows[2]["labels"])


@pytest.mark.parametrize("index", [-1, 0])
def test_numbers_count_as_in_a_list(store, index):
    windows = Windows(whole(store), 31)
    assert torch.equal(windows[index]["input_ids"], windows[range(len(windows))[index]]["input_ids"])
    with pytest.raises(IndexError):
        windows[len(windows)]


@pytest.mark.parametrize("context", [0, -1])
def test_a_context_without_tokens(store, context):
    with pytest.raises(UserError, match="at least 1"):
        Windows(whole(store), context)


def test_text_shorter_than_the_context_is_refused_with_both_numbers(store):
    selection = Selection(store, np.array([3]))
    Windows(selection, selection.tokens - 1)
    with pytest.raises(
        UserError, match=rf"1 documents have {selection.tokens} tokens in all.*needs {selection.tokens + 1}"
    ):
        Windows(selection, selection.tokens)


def test_nothing_to_pack(store):
    with pytest.raises(UserError, match="0 documents have 0 tokens"):
        Windows(Selection(store, np.array([], dtype=np.int64)), 5)


def toy_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def test_transformers_loss_predicts_every_label_once(store):
    """Over shift_labels the loss is that of logits[t] against labels[t], all `context` of them, shifted once only."""
    model = toy_model()
    batch = collate([Windows(whole(store), 31)[i] for i in range(5)])
    with torch.no_grad():
        out = model(**batch)
    wanted = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(out.loss, wanted)


def test_trainer_reads_epochs_in_order_and_goes_on_in_the_middle(store, tmp_path):
    """Two epochs, and again from a checkpoint in the middle of the second: the same windows in the same order."""
    from transformers import Trainer, TrainingArguments

    split = split_by_share(store, 0.2, 0)
    windows = Windows(split.train, 31)

    class Keyed(Trainer):
        seen: list[bytes]

        def _get_train_sampler(self, train_dataset=None):
            return KeyedOrder(len(windows), 3)

        def training_step(self, model, inputs, *rest):
            self.seen.append(inputs["input_ids"].numpy().tobytes())
            return super().training_step(model, inputs, *rest)

    per_epoch = -(-len(windows) // 4)
    half = per_epoch + per_epoch // 2

    def train(resume):
        args = TrainingArguments(
            output_dir=str(tmp_path / "out"),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            save_steps=half,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Keyed(model=toy_model(), args=args, train_dataset=windows, data_collator=collate)
        trainer.seen = []
        trainer.train(resume_from_checkpoint=resume)
        return trainer.seen

    whole_run = train(None)
    wanted = []
    for epoch in (0, 1):
        order = KeyedOrder(len(windows), 3)
        order.set_epoch(epoch)
        chosen = [windows[index]["input_ids"].numpy() for index in order]
        wanted += [np.stack(chosen[i : i + 4]).tobytes() for i in range(0, len(chosen), 4)]
    assert whole_run == wanted
    assert train(str(tmp_path / "out" / f"checkpoint-{half}")) == wanted[half:]
