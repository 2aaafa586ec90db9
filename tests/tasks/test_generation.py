"""Generating text: loops with caches, samplers, batches, stops, streams; greedy and beam search as in transformers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM
from lmzoo.tasks.beam_search import BeamSampler
from lmzoo.tasks.generation import SAMPLERS, TokenGenerator, prompt_width
from lmzoo.tasks.prompts import prompt_ids
from lmzoo.testing import randomize, tiny_task
from lmzoo.text.text_pieces import TextPieces

PROMPTS = ["the film", "a", "the plot was never dull . the good", "", "é"]
NEW = 9


@pytest.fixture(scope="module")
def model():
    """One for all tests, so that each loop is compiled once: to look at, not to change."""
    model = tiny_task(CausalLM, FAMILY, max_new_tokens=64)
    randomize(model)
    return model


@pytest.fixture
def tokens(monkeypatch):
    """Makes `generate` return numbers of tokens as text: bytes alone are no characters."""
    name = "lmzoo.text.tokenizers.bpe.BytePairTokenizer.detokenize"
    monkeypatch.setattr(name, lambda self, ids: "".join(f"{i} " for i in ids))


def without_cache(model, prompt):
    """The most probable tokens, each from a call of the model on all tokens before it."""
    tokenizer = model.preprocessor.tokenizer
    ids = prompt_ids(model.preprocessor, [prompt], model.start_ids)[0]
    count, features = len(ids), np.zeros((2, 1, 73), "int32")
    for _ in range(NEW):
        features[0, 0, : len(ids)], features[1, 0, : len(ids)] = ids, 1
        logits = model.predict_on_batch(dict(zip(("token_ids", "padding_mask"), features, strict=True)))
        ids.append(int(logits[0, len(ids) - 1, : tokenizer.vocabulary_size].argmax()))
    return "".join(f"{i} " for i in ids[count:])


@pytest.mark.slow
def test_greedy_search_is_that_without_a_cache(model, tokens):
    found = model.generate(PROMPTS, NEW, stop=None)
    assert found == [without_cache(model, prompt) for prompt in PROMPTS]
    assert {len(text.split()) for text in found} == {NEW}


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="reads JAX's program")
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
def test_no_column_is_joined_to_a_matrix(model, sampler):
    """XLA of JAX 0.11 fails to compile that for GPUs, for vocabularies of 8,000 tokens and others."""
    import jax

    generator = TokenGenerator(model, model.preprocessor.tokenizer.vocabulary_size)
    ids, count = np.ones((2, 7), "int32"), np.full(2, 3, "int32")
    data = {"prompt": ids, "read": ids[:, :3], "length": count, "limit": count + 2, "start": 3, "end": 5}
    data |= {"stops": np.zeros(4, "int32"), "temperature": np.float32(1)}
    traced = jax.make_jaxpr(lambda: generator.generate_in_graph(generator.sampler(sampler, None), **data))()

    def joined(program):
        for equation in program.eqns:
            if equation.primitive.name == "concatenate":
                yield [x.aval.shape for x in equation.invars]
            for value in equation.params.values():
                for part in value if isinstance(value, tuple) else (value,):
                    if hasattr(part := getattr(part, "jaxpr", part), "eqns"):
                        yield from joined(part)

    shapes = [*joined(traced.jaxpr)]
    assert not [found for found in shapes if found[0][-1] > 9 and found[-1][-1] == 1]


@pytest.mark.quick_cases("contrastive-others2", "beam-others3")
@pytest.mark.parametrize(
    ("sampler", "others"),
    [
        ("greedy", PROMPTS[2:3]),
        ("beam", PROMPTS[2:3]),
        *(pytest.param(sampler, PROMPTS, marks=pytest.mark.slow) for sampler in ("contrastive", "beam")),
    ],
)
def test_alone_and_in_a_batch(model, tokens, sampler, others):
    found = model.generate(PROMPTS, NEW, sampler, stop=None)
    alone = [text for prompt in others for text in model.generate([prompt], NEW, sampler, stop=None)]
    assert alone == [found[PROMPTS.index(prompt)] for prompt in others]
    assert len(set(found)) > 3
    if others is PROMPTS:
        assert model.generate(PROMPTS[::-1], NEW, sampler, stop=None, batch_size=2) == found[::-1]


@pytest.mark.slow_cases("top_k")
@pytest.mark.parametrize(
    "sampler", ["top_k", *(pytest.param(name, marks=pytest.mark.slow) for name in ("top_p", "random"))]
)
def test_samples(model, tokens, sampler):
    one, same, other = (model.generate(PROMPTS, NEW, sampler, temperature=3.0, stop=None, seed=s) for s in (5, 5, 6))
    assert one == same
    assert one != other or sampler == "top_p"  # whose 0.1 leaves little choice
    cold = model.generate(PROMPTS, NEW, sampler, temperature=1e-4, stop=None)
    assert cold == model.generate(PROMPTS, NEW, stop=None)


@pytest.mark.slow
def test_a_temperature_next_to_zero(model, tokens, monkeypatch):
    """GPT-2's logits are below -30: divided by it, they are lower than what keeps other tokens from being chosen."""
    from keras_hub.samplers import RandomSampler

    greedy, logits = model.generate(PROMPTS, NEW, stop=None), CausalLM.next_token_logits
    monkeypatch.setattr(CausalLM, "next_token_logits", lambda self, vectors: logits(self, vectors) - 40.0)
    assert model.generate(PROMPTS, NEW, RandomSampler(), temperature=1e-9, stop=None) == greedy


@pytest.mark.slow
def test_a_sampler_of_keras_hub(model, tokens):
    from keras_hub.samplers import TopKSampler

    sampler = TopKSampler(k=1)
    assert model.generate(PROMPTS[:1], NEW, sampler, stop=None) == model.generate(PROMPTS[:1], NEW, stop=None)
    sampler.k = 300  # noticed, also after a call
    expected = model.generate(PROMPTS[:1], NEW, TopKSampler(k=300), stop=None, seed=3)
    assert model.generate(PROMPTS[:1], NEW, sampler, stop=None, seed=3) == expected


@pytest.mark.slow_cases("greedy")
@pytest.mark.parametrize(
    "sampler", ["greedy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("beam", "contrastive"))]
)
def test_a_stream_is_the_text_in_pieces(model, tokens, sampler):
    pieces = list(model.generate(PROMPTS, 20, sampler, stop=None, stream=True))
    whole = model.generate(PROMPTS, 20, sampler, stop=None)
    assert ["".join(parts) for parts in zip(*pieces, strict=True)] == whole
    assert sum(any(parts) for parts in pieces) > (0 if sampler == "beam" else 3)
    # One that is not read to its end does no harm.
    next(model.generate(PROMPTS, 20, sampler, stop=None, stream=True))
    assert model.generate(PROMPTS, 20, sampler, stop=None) == whole


@pytest.mark.slow
def test_streams_of_one_sampler_do_not_disturb_each_other(model, tokens):
    def streams():
        arguments = {"max_new_tokens": 20, "sampler": "top_k", "temperature": 3.0, "stop": None, "stream": True}
        return [model.generate([prompt], seed=seed, **arguments) for seed, prompt in enumerate(PROMPTS[:2])]

    one, other = map(list, streams())  # one after the other
    in_turns = list(zip(*streams(), strict=True))
    assert in_turns == list(zip(one, other, strict=True))
    assert len(in_turns) > 3


@pytest.mark.slow
def test_settings_that_are_changed_later_are_those_of_one_sampler(model):
    """The compiled search is shared by equal samplers, and is traced again for other shapes."""
    sampler = BeamSampler(num_beams=3)
    one, other = (TokenGenerator(model, model.preprocessor.tokenizer.vocabulary_size) for _ in range(2))
    one._loop(sampler)  # compiled when it is called
    sampler.num_beams = 1
    found, expected, single = (
        next(generator.generate([[5, 7]], NEW, chosen, [3], 1.0, False, 1))
        for generator, chosen in ((one, BeamSampler(3)), (other, BeamSampler(3)), (other, sampler))
    )
    assert found == expected != single


@pytest.mark.slow
def test_seeds_of_any_size(model, tokens):
    arguments = {"max_new_tokens": 3, "sampler": "top_k", "stop": None}
    assert model.generate(["a"], seed=2**32 + 5, **arguments) == model.generate(["a"], seed=5, **arguments)


def test_stops(model, tokens, monkeypatch):
    (text,) = model.generate(["the film"], NEW, stop=None)
    ids = [int(i) for i in text.split()]
    tokenizer, third = model.preprocessor.tokenizer, ids[2]
    first = ids.index(third)
    generator = TokenGenerator(model, tokenizer.vocabulary_size)
    for stream in (False, True):
        prompts = prompt_ids(model.preprocessor, ["the film", "a"], model.start_ids)
        parts = list(generator.generate(prompts, NEW, generator.sampler("greedy", None), [third], 1.0, stream, 2))
        assert [i for found, _ in parts for i in found] == ids[: first + 1]
    # In the loop, what has ended waits for the others of its batch.
    made, loop = [], generator._loop
    monkeypatch.setattr(generator, "_loop", lambda s: lambda **data: made.append(loop(s)(**data)) or made[-1])
    list(generator.generate(prompts, NEW, generator.sampler("greedy", None), [third], 1.0, False, 2))
    after = len(prompts[0]) + first + 1
    assert (made[0][0, after : len(prompts[0]) + NEW] == tokenizer.vocabulary_size).any()


@pytest.mark.slow
def test_as_many_as_there_is_room_for(model, tokens):
    long = "the film " * 20
    (text,) = model.generate([long], stop=None)
    assert len(text.split()) == 73 - len(model.preprocessor.tokenizer.tokenize([long])[0]) > 3
    few = CausalLM(model.backbone, model.preprocessor, max_new_tokens=5)
    assert len(few.generate(["the film"], stop=None)[0].split()) == 5
    assert few.generate(["the film", "film " * 67], stop=None)[0] == few.generate(["the film"], stop=None)[0]
    assert CausalLM(model.backbone).max_new_tokens == 36  # half of the positions
    with pytest.raises(ValueError, match="`max_new_tokens` must be a positive integer below the model's 73 positions"):
        few.max_new_tokens = 73


@pytest.mark.slow
def test_a_stop_string(model):
    tokenizer = model.preprocessor.tokenizer
    (whole,) = model.generate(["the plot"], 30, stop=None)
    stop = whole[3:5]
    (text,) = model.generate(["the plot"], 30, stop=[stop, "never there"])
    assert text == whole[: whole.index(stop)]
    assert tokenizer.end_token not in model.generate(["the plot"], 30)[0]


@pytest.mark.slow
def test_few_shapes_are_compiled(model, monkeypatch):
    """For any mix of lengths: one, open shape on TensorFlow; elsewhere four widths, and powers of two as batches."""
    assert {prompt_width(length, 1024) for length in range(1, 1025)} == {16, 64, 256, 1024}
    traced, generate = [], TokenGenerator.generate_in_graph
    counting = lambda self, *a, **k: traced.append(1) or generate(self, *a, **k)  # noqa: E731
    monkeypatch.setattr(TokenGenerator, "generate_in_graph", counting)
    generator = TokenGenerator(model, model.preprocessor.tokenizer.vocabulary_size)
    sampler, rng = generator.sampler("greedy", None), np.random.default_rng(3)
    for _ in range(12):
        prompts = [rng.integers(0, 300, count).tolist() for count in rng.integers(1, 60, rng.integers(3, 5))]
        list(generator.generate(prompts, NEW, sampler, [], 1.0, False, 4))
    assert len(traced) == 1 if keras.backend.backend() == "tensorflow" else 1 < len(traced) <= 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompts": ["a", None]}, TypeError, r"`prompts\[1\]` must be a string, got None"),
        (
            {"prompts": ["a", "the film " * 50]},
            ValueError,
            r"`prompts\[1\]` has \d+ tokens.* 73 tokens that the model takes.* Shorten",
        ),
        (
            {"max_new_tokens": 73},
            ValueError,
            r"`max_new_tokens=73` is more than the 73 tokens that the model takes.* at most 72",
        ),
        ({"max_new_tokens": 0}, ValueError, "`max_new_tokens` must be a positive integer, got 0"),
        ({"sampler": "top-k"}, ValueError, "no sampler 'top-k'. Did you mean 'top_k'?"),
        ({"sampler": 3}, TypeError, "`sampler` must be a name or a sampler of `keras_hub.samplers`, got 3"),
        (
            {"temperature": 0.0},
            ValueError,
            '`temperature` must be a number from 1e-30 to 1e30, got 0.0. .*sampler="greedy"',
        ),
        ({"temperature": 1e-46}, ValueError, "`temperature` must be a number from 1e-30 to 1e30, got 1e-46"),
        ({"seed": -1}, ValueError, "`seed` must be an integer of at least 0, or None, got -1"),
        ({"stop": [""]}, ValueError, "`stop` must be a string that is not empty, .* or None, got ''"),
        ({"stop": 5.0}, ValueError, "`stop` must be a string that is not empty, .* or None, got 5.0"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be an integer of at least 1, got 0"),
    ],
)
def test_errors_before_the_first_step(model, arguments, error, message, monkeypatch):
    monkeypatch.setattr(TokenGenerator, "generate", None)
    with pytest.raises(error, match=message):
        model.generate(**{"prompts": ["a"], "stream": True, **arguments})


@pytest.mark.slow
def test_a_family_without_a_start_token(model):
    special = {**FAMILY.special_tokens, "start_token": None}
    other = CausalLM(model.backbone, model.preprocessor)
    known = model.preprocessor.tokenizer
    tokenizer = FAMILY.tokenizer(known.vocabulary, known.merges, **special)
    other.preprocessor = type(model.preprocessor)(tokenizer, FAMILY.packing, 73)
    with pytest.raises(ValueError, match=r"`prompts\[1\]` is empty, and the family has no start token"):
        other.generate(["a", ""])
    assert len(other.score(["the film"])[0]) == len(model.score(["the film"])[0]) - 1
    assert model.generate([]) == []


def test_pieces_of_characters():
    tokenizer = FAMILY.tokenizer.of_words(["film"], 270, **FAMILY.special_tokens)
    pieces = TextPieces(tokenizer)
    found = [pieces.add([token]) for token in tokenizer.tokenize(["é film"])[0]]
    assert [*found, pieces.rest()] == ["", "é", " film", ""]
    pieces.add(tokenizer.tokenize(["é"])[0][:1])
    assert pieces.rest() == "\ufffd"
    stopping = TextPieces(tokenizer, stop=["ab", "b!"])
    assert [stopping.add(tokenizer.tokenize([text])[0]) for text in ("xa", "c", "b", "!")] == ["x", "ac", "", ""]
    assert stopping.rest() == ""
    assert stopping.ended


# === transformers ===


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model of transformers' and ours with its weights."""
    torch = pytest.importorskip("torch")
    from tests.checkpoints.model_files import load, peer

    folder = tmp_path_factory.mktemp("theirs")
    theirs = peer("gpt2", "LMHeadModel", folder, bos_token_id=1, eos_token_id=1)
    with torch.no_grad():
        for parameter in theirs.parameters():  # else one token follows all others
            parameter.add_(torch.randn_like(parameter) * 0.3)
    theirs.save_pretrained(folder)
    return theirs, load(folder, CausalLM)


@pytest.mark.slow_cases("11-beam")
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
@pytest.mark.parametrize("count", [11, pytest.param(200, marks=pytest.mark.slow)])
def test_transformers(pair, sampler, count):
    """The same tokens for prompts of mixed lengths, of which many end early: so do beams."""
    import torch

    theirs, ours = pair
    rng, new = np.random.default_rng(7), 12
    prompts = [rng.integers(0, 131, length).tolist() for length in rng.integers(1, 55, count)]
    generator = TokenGenerator(ours, 131)
    beams = {"num_beams": 4, "length_penalty": 1.0} if sampler == "beam" else {}

    def expected(end):
        found = []
        for prompt in prompts:
            with torch.no_grad():
                ids = torch.tensor([prompt])
                row = theirs.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new,
                    do_sample=False,
                    eos_token_id=end,
                    pad_token_id=0,
                    **beams,
                )[0].tolist()[len(prompt) :]
            found.append(row[: row.index(end) + 1] if end in row else row)
        return found

    def actual(sampler, *end):
        return next(generator.generate(prompts, new, sampler, end, 1.0, False, count))

    greedy = generator.sampler("greedy", None)
    counts = np.bincount(np.concatenate(actual(greedy)), minlength=131)
    end = int(np.argsort(counts)[-3])  # a token that is often there
    found = actual(BeamSampler(4, 1.0) if beams else greedy, end)
    assert found == expected(end)
    assert 0 < sum(end in row for row in found) < count


def test_beams_go_on_beside_more_tokens_that_end_a_text():
    """Three tokens end a text. All three are more probable than 5 to come first, but the best text begins with 5."""
    after = np.full((7, 7), 1 / 7)
    after[0] = [0.005, 0.3, 0.2, 0.15, 0.24, 0.1, 0.005]
    after[5], after[6] = [0.002, 0.002, 0.002, 0.002, 0.002, 0.002, 0.988], [0.002, 0.988, *[0.002] * 5]
    logits = ops.convert_to_tensor(np.log(after).astype("float32"))

    def next(tokens, cache, index):
        return ops.take(logits, tokens[:, index - 1], axis=0), None, cache

    prompt, mask = np.zeros((1, 5), "int32"), np.arange(5)[None] < 1
    found = BeamSampler(num_beams=2)(next, prompt, ops.zeros((1, 1)), 1, mask, stop_token_ids=[1, 2, 3])
    assert ops.convert_to_numpy(found).tolist() == [[0, 5, 6, 1, 0]]


@pytest.mark.slow
def test_log_probabilities(pair):
    import torch

    theirs, ours = pair
    features = {"token_ids": np.random.default_rng(5).integers(0, 131, (3, 23)).astype("int32")}
    features["padding_mask"] = (np.arange(23) < np.array([[23], [7], [16]])).astype("int32")
    real = features["padding_mask"] > 0
    with torch.no_grad():
        logits = theirs(
            torch.tensor(features["token_ids"], dtype=torch.long), attention_mask=torch.tensor(features["padding_mask"])
        ).logits
    np.testing.assert_allclose(ours.predict(features, verbose=0)[real], logits.numpy()[real], rtol=1e-5, atol=1e-5)
    from lmzoo.tasks.sequence_scores import scoring_model

    expected = torch.log_softmax(logits, -1).numpy()[:, :-1]
    expected = np.take_along_axis(expected, features["token_ids"][:, 1:, None], axis=2)[..., 0]
    model = scoring_model(ours.backbone, lambda inputs, vectors: ours.backbone(inputs, vectors=vectors))
    found = model.predict(features, verbose=0)
    np.testing.assert_allclose(found[:, 1:][real[:, 1:]], expected[real[:, 1:]], rtol=1e-5, atol=1e-5)
    assert not found[:, 0].any()


@pytest.mark.slow
def test_all_samplers_are_there():
    import keras_hub

    assert {type(keras_hub.samplers.get(name)).__name__ for name in SAMPLERS if name != "beam"} == {
        "ContrastiveSampler", "GreedySampler", "RandomSampler", "TopKSampler", "TopPSampler",
    }  # fmt: skip
    assert keras.backend.backend() in ("tensorflow", "jax")
