"""`CausalLM.generate`: caches, samplers, batches, stops, streams; greedy and beam search as in transformers."""

from __future__ import annotations

import tracemalloc

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM
from lmzoo.tasks import causal_lm
from lmzoo.tasks.beam_search import BeamSampler
from lmzoo.tasks.generation import TokenGenerator, get_prompt_width
from lmzoo.tasks.prompts import encode_prompts
from lmzoo.testing import randomize, tiny_task
from lmzoo.text.text_pieces import TextPieces

PROMPTS = ["the film", "a", "the plot was never dull . the good", "", "é"]
NEW_TOKENS = 9


@pytest.fixture(scope="module")
def model():
    """Return a model that the tests share, so that each loop is compiled once, and do not change."""
    model = tiny_task(CausalLM, FAMILY, max_new_tokens=64)
    randomize(model)
    return model


@pytest.fixture
def tokens(monkeypatch):
    """Make `generate` return token ids as text, since single bytes are not always characters."""
    name = "lmzoo.text.tokenizers.bpe.BytePairTokenizer.detokenize"
    monkeypatch.setattr(name, lambda self, ids: "".join(f"{i} " for i in ids))


def generate_without_cache(model, prompt):
    """Return the most probable tokens, each from a call of the model on all tokens before it."""
    tokenizer = model.preprocessor.tokenizer
    ids = encode_prompts(model.preprocessor, [prompt], model.start_ids)[0]
    count, features = len(ids), np.zeros((2, 1, 73), "int32")
    for _ in range(NEW_TOKENS):
        features[0, 0, : len(ids)], features[1, 0, : len(ids)] = ids, 1
        logits = model.predict_on_batch(dict(zip(("token_ids", "padding_mask"), features, strict=True)))
        ids.append(int(logits[0, len(ids) - 1, : tokenizer.vocabulary_size].argmax()))
    return "".join(f"{i} " for i in ids[count:])


@pytest.mark.slow
def test_greedy_search_gives_the_same_tokens_without_a_cache(model, tokens):
    texts = model.generate(PROMPTS, NEW_TOKENS, stop=None)
    assert texts == [generate_without_cache(model, prompt) for prompt in PROMPTS]
    assert {len(text.split()) for text in texts} == {NEW_TOKENS}


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="reads JAX's program")
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
def test_no_column_is_joined_to_a_matrix(model, sampler):
    """XLA of JAX 0.11 cannot compile such a concatenation for GPUs, for vocabularies of 8,000 tokens among others."""
    import jax

    generator = TokenGenerator(model, model.preprocessor.tokenizer.vocabulary_size)
    ids, count = np.ones((2, 7), "int32"), np.full(2, 3, "int32")
    data = {"prompt": ids, "read": ids[:, :3], "length": count, "limit": count + 2, "start": 3, "end": 5}
    data |= {"stops": np.zeros(4, "int32"), "temperature": np.float32(1)}
    traced = jax.make_jaxpr(lambda: generator.generate_in_graph(generator.sampler(sampler, None), **data))()

    def list_concatenated_shapes(program):
        for equation in program.eqns:
            if equation.primitive.name == "concatenate":
                yield [x.aval.shape for x in equation.invars]
            for value in equation.params.values():
                for part in value if isinstance(value, tuple) else (value,):
                    if hasattr(part := getattr(part, "jaxpr", part), "eqns"):
                        yield from list_concatenated_shapes(part)

    shapes = [*list_concatenated_shapes(traced.jaxpr)]
    assert not [operands for operands in shapes if operands[0][-1] > 9 and operands[-1][-1] == 1]


@pytest.mark.quick_cases("contrastive-prompts2", "beam-prompts3")
@pytest.mark.parametrize(
    ("sampler", "prompts"),
    [
        ("greedy", PROMPTS[2:3]),
        ("beam", PROMPTS[2:3]),
        *(pytest.param(sampler, PROMPTS, marks=pytest.mark.slow) for sampler in ("contrastive", "beam")),
    ],
)
def test_texts_do_not_depend_on_the_batch(model, tokens, sampler, prompts):
    texts = model.generate(PROMPTS, NEW_TOKENS, sampler, stop=None)
    single_texts = [text for prompt in prompts for text in model.generate([prompt], NEW_TOKENS, sampler, stop=None)]
    assert single_texts == [texts[PROMPTS.index(prompt)] for prompt in prompts]
    assert len(set(texts)) > 3
    if prompts is PROMPTS:
        assert model.generate(PROMPTS[::-1], NEW_TOKENS, sampler, stop=None, batch_size=2) == texts[::-1]


@pytest.mark.slow_cases("top_k")
@pytest.mark.parametrize(
    "sampler", ["top_k", *(pytest.param(name, marks=pytest.mark.slow) for name in ("top_p", "random"))]
)
def test_samples_follow_the_seed_and_the_temperature(model, tokens, sampler):
    first, same_seed, other_seed = (
        model.generate(PROMPTS, NEW_TOKENS, sampler, temperature=3.0, stop=None, seed=seed) for seed in (5, 5, 6)
    )
    assert first == same_seed
    assert first != other_seed or sampler == "top_p"  # its 0.1 leaves little choice
    cold_texts = model.generate(PROMPTS, NEW_TOKENS, sampler, temperature=1e-4, stop=None)
    assert cold_texts == model.generate(PROMPTS, NEW_TOKENS, stop=None)


@pytest.mark.slow
def test_a_temperature_near_zero_samples_greedily(model, tokens, monkeypatch):
    """GPT-2's logits are below -30: divided by it, they are below the value that masks other tokens."""
    from keras_hub.samplers import RandomSampler

    greedy, logits = model.generate(PROMPTS, NEW_TOKENS, stop=None), CausalLM.next_token_logits
    monkeypatch.setattr(CausalLM, "next_token_logits", lambda self, vectors: logits(self, vectors) - 40.0)
    assert model.generate(PROMPTS, NEW_TOKENS, RandomSampler(), temperature=1e-9, stop=None) == greedy


@pytest.mark.slow
def test_a_sampler_of_keras_hub_may_change_between_calls(model, tokens):
    from keras_hub.samplers import TopKSampler

    sampler = TopKSampler(k=1)
    greedy = model.generate(PROMPTS[:1], NEW_TOKENS, stop=None)
    assert model.generate(PROMPTS[:1], NEW_TOKENS, sampler, stop=None) == greedy
    sampler.k = 300
    expected = model.generate(PROMPTS[:1], NEW_TOKENS, TopKSampler(k=300), stop=None, seed=3)
    assert model.generate(PROMPTS[:1], NEW_TOKENS, sampler, stop=None, seed=3) == expected


@pytest.mark.slow_cases("greedy")
@pytest.mark.parametrize(
    "sampler", ["greedy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("beam", "contrastive"))]
)
def test_a_stream_is_the_text_in_pieces(model, tokens, sampler):
    pieces = list(model.generate(PROMPTS, 20, sampler, stop=None, stream=True))
    texts = model.generate(PROMPTS, 20, sampler, stop=None)
    assert ["".join(parts) for parts in zip(*pieces, strict=True)] == texts
    assert sum(any(parts) for parts in pieces) > (0 if sampler == "beam" else 3)
    # A stream that is not read to its end does not affect the next one.
    next(model.generate(PROMPTS, 20, sampler, stop=None, stream=True))
    assert model.generate(PROMPTS, 20, sampler, stop=None) == texts


@pytest.mark.slow
def test_streams_of_one_sampler_do_not_disturb_each_other(model, tokens):
    def start_streams():
        arguments = {"max_new_tokens": 20, "sampler": "top_k", "temperature": 3.0, "stop": None, "stream": True}
        return [model.generate([prompt], seed=seed, **arguments) for seed, prompt in enumerate(PROMPTS[:2])]

    first, second = map(list, start_streams())  # read one after the other
    alternating = list(zip(*start_streams(), strict=True))
    assert alternating == list(zip(first, second, strict=True))
    assert len(alternating) > 3


@pytest.mark.slow
def test_changing_a_sampler_does_not_change_equal_samplers(model):
    """Equal samplers share the compiled search, which is traced again for other shapes."""
    sampler = BeamSampler(num_beams=3)
    first, second = (TokenGenerator(model, model.preprocessor.tokenizer.vocabulary_size) for _ in range(2))
    first._get_loop(sampler)  # compiled when it is called
    sampler.num_beams = 1
    actual, expected, greedy = (
        next(generator.generate([[5, 7]], NEW_TOKENS, beam_sampler, [3], 1.0, False, 1))
        for generator, beam_sampler in ((first, BeamSampler(3)), (second, BeamSampler(3)), (second, sampler))
    )
    assert actual == expected != greedy


def test_memory_is_linear_in_the_number_of_prompts(model, monkeypatch):
    """A list with an entry for each prompt, kept for each batch, would take 16 MB for these prompts."""

    class OneToken:
        def isolate_random_state(self, sampler, seed, make_pieces):
            return make_pieces(sampler)

        def generate(self, prompts, *_):
            yield [[prompt[0] + 1] for prompt in prompts]

    monkeypatch.setattr(causal_lm, "get_generator", lambda *_: OneToken())
    prompts = [[3 + i % 5] for i in range(997)]
    streamed = [*model.generate(prompts[:3], max_new_tokens=2, batch_size=2, stream=True)]
    assert streamed == [[[4], [5], []], [[], [], []], [[], [], [6]], [[], [], []]]
    tracemalloc.start()
    continuations = model.generate(prompts, max_new_tokens=2, batch_size=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert continuations == [[4 + i % 5] for i in range(997)]
    assert peak < 4e6


@pytest.mark.slow
def test_seeds_are_taken_modulo_2_to_the_32(model, tokens):
    arguments = {"max_new_tokens": 3, "sampler": "top_k", "stop": None}
    assert model.generate(["a"], seed=2**32 + 5, **arguments) == model.generate(["a"], seed=5, **arguments)


def test_generation_ends_after_a_stop_token(model, tokens, monkeypatch):
    (text,) = model.generate(["the film"], NEW_TOKENS, stop=None)
    ids = [int(i) for i in text.split()]
    tokenizer, stop_id = model.preprocessor.tokenizer, ids[2]
    position = ids.index(stop_id)
    generator = TokenGenerator(model, tokenizer.vocabulary_size)
    sampler = generator.sampler("greedy", None)
    prompts = encode_prompts(model.preprocessor, ["the film", "a"], model.start_ids)
    for stream in (False, True):
        chunks = list(generator.generate(prompts, NEW_TOKENS, sampler, [stop_id], 1.0, stream, 2))
        assert [i for new_ids, _ in chunks for i in new_ids] == ids[: position + 1]
    # In the loop, a text that has ended waits for the rest of its batch.
    results, loop = [], generator._get_loop
    monkeypatch.setattr(generator, "_get_loop", lambda s: lambda **data: results.append(loop(s)(**data)) or results[-1])
    list(generator.generate(prompts, NEW_TOKENS, sampler, [stop_id], 1.0, False, 2))
    after = len(prompts[0]) + position + 1
    assert (results[0][0, after : len(prompts[0]) + NEW_TOKENS] == tokenizer.vocabulary_size).any()


@pytest.mark.slow
def test_texts_fill_the_models_positions_or_max_new_tokens(model, tokens):
    long = "the film " * 20
    (text,) = model.generate([long], stop=None)
    assert len(text.split()) == 73 - len(model.preprocessor.tokenizer.tokenize([long])[0]) > 3
    limited = CausalLM(model.backbone, model.preprocessor, max_new_tokens=5)
    assert len(limited.generate(["the film"], stop=None)[0].split()) == 5
    assert limited.generate(["the film", "film " * 67], stop=None)[0] == limited.generate(["the film"], stop=None)[0]
    assert CausalLM(model.backbone).max_new_tokens == 36  # half of the positions
    with pytest.raises(ValueError, match="`max_new_tokens` must be a positive integer below the model's 73 positions"):
        limited.max_new_tokens = 73


@pytest.mark.slow
def test_texts_end_before_a_stop_string(model):
    tokenizer = model.preprocessor.tokenizer
    (full_text,) = model.generate(["the plot"], 30, stop=None)
    stop = full_text[3:5]
    (text,) = model.generate(["the plot"], 30, stop=[stop, "never there"])
    assert text == full_text[: full_text.index(stop)]
    assert tokenizer.end_token not in model.generate(["the plot"], 30)[0]


@pytest.mark.slow
def test_few_shapes_are_compiled(model, monkeypatch):
    """TensorFlow compiles one open shape for all lengths; other backends four widths, and powers of 2 of batches."""
    assert {get_prompt_width(length, 1024) for length in range(1, 1025)} == {16, 64, 256, 1024}
    traces, generate = [], TokenGenerator.generate_in_graph
    count_traces = lambda self, *a, **k: traces.append(1) or generate(self, *a, **k)  # noqa: E731
    monkeypatch.setattr(TokenGenerator, "generate_in_graph", count_traces)
    generator = TokenGenerator(model, model.preprocessor.tokenizer.vocabulary_size)
    sampler, rng = generator.sampler("greedy", None), np.random.default_rng(3)
    for _ in range(12):
        prompts = [rng.integers(0, 300, count).tolist() for count in rng.integers(1, 60, rng.integers(3, 5))]
        list(generator.generate(prompts, NEW_TOKENS, sampler, [], 1.0, False, 4))
    assert len(traces) == 1 if keras.backend.backend() == "tensorflow" else 1 < len(traces) <= 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompts": ["a", None]}, TypeError, r"`prompts\[1\]` must be a string, got None"),
        (
            {"prompts": ["a", "the film " * 50]},
            ValueError,
            r"`prompts\[1\]` has \d+ tokens, and the model takes 73: there is no room for a new token. Shorten the",
        ),
        (
            {"max_new_tokens": 73},
            ValueError,
            r"`max_new_tokens=73` is more than the 73 tokens that the model takes.* at most 72",
        ),
        (
            {"prompts": [[5] * 73]},
            ValueError,
            r"`prompts\[0\]` has 73 tokens, and the model takes 73: there is no room for a new token. Shorten",
        ),
        (
            {"prompts": [[5] * 73], "max_new_tokens": 1},
            ValueError,
            r"`prompts\[0\]` has 73 tokens, which with `max_new_tokens=1` is more than the 73",
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
def test_prompts_must_not_be_empty_without_a_start_token(model):
    special_tokens = {**FAMILY.special_tokens, "start_token": None}
    task = CausalLM(model.backbone, model.preprocessor)
    original = model.preprocessor.tokenizer
    tokenizer = FAMILY.tokenizer(original.vocabulary, original.merges, **special_tokens)
    task.preprocessor = type(model.preprocessor)(tokenizer, FAMILY.packing, 73)
    with pytest.raises(ValueError, match=r"`prompts\[1\]` is empty, and the family has no start token"):
        task.generate(["a", ""])
    assert len(task.score(["the film"])[0]) == len(model.score(["the film"])[0]) - 1
    assert model.generate([]) == []


def test_text_pieces_hold_whole_characters_only():
    tokenizer = FAMILY.tokenizer.of_words(["film"], 270, **FAMILY.special_tokens)
    pieces = TextPieces(tokenizer)
    texts = [pieces.add([token]) for token in tokenizer.tokenize(["é film"])[0]]
    assert [*texts, pieces.rest()] == ["", "é", " film", ""]
    pieces.add(tokenizer.tokenize(["é"])[0][:1])
    assert pieces.rest() == "\ufffd"
    stopping = TextPieces(tokenizer, stop=["ab", "b!"])
    assert [stopping.add(tokenizer.tokenize([text])[0]) for text in ("xa", "c", "b", "!")] == ["x", "ac", "", ""]
    assert stopping.rest() == ""
    assert stopping.ended


# === transformers ===


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a model of transformers, and ours with its weights."""
    torch = pytest.importorskip("torch")
    from tests.checkpoints.model_files import load, peer

    folder = tmp_path_factory.mktemp("peer")
    peer_model = peer("gpt2", "LMHeadModel", folder, bos_token_id=1, eos_token_id=1)
    with torch.no_grad():
        for parameter in peer_model.parameters():  # otherwise one token follows all tokens
            parameter.add_(torch.randn_like(parameter) * 0.3)
    peer_model.save_pretrained(folder)
    return peer_model, load(folder, CausalLM)


@pytest.mark.slow_cases("11-beam")
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
@pytest.mark.parametrize("count", [11, pytest.param(200, marks=pytest.mark.slow)])
def test_tokens_are_those_of_transformers(pair, sampler, count):
    """The prompts differ in length, and many texts and beams end early."""
    import torch

    peer_model, model = pair
    rng, new = np.random.default_rng(7), 12
    prompts = [rng.integers(0, 131, length).tolist() for length in rng.integers(1, 55, count)]
    generator = TokenGenerator(model, 131)
    beams = {"num_beams": 4, "length_penalty": 1.0} if sampler == "beam" else {}

    def generate_with_transformers(end):
        results = []
        for prompt in prompts:
            with torch.no_grad():
                ids = torch.tensor([prompt])
                row = peer_model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new,
                    do_sample=False,
                    eos_token_id=end,
                    pad_token_id=0,
                    **beams,
                )[0].tolist()[len(prompt) :]
            results.append(row[: row.index(end) + 1] if end in row else row)
        return results

    def generate(sampler, *end):
        return next(generator.generate(prompts, new, sampler, end, 1.0, False, count))

    greedy = generator.sampler("greedy", None)
    counts = np.bincount(np.concatenate(generate(greedy)), minlength=131)
    end = int(np.argsort(counts)[-3])  # a frequent token
    tokens = generate(BeamSampler(4, 1.0) if beams else greedy, end)
    assert tokens == generate_with_transformers(end)
    assert 0 < sum(end in row for row in tokens) < count


def test_beams_continue_though_stop_tokens_are_more_probable():
    """Three stop tokens are more probable than 5 as the first token, but the best text begins with 5."""
    probabilities = np.full((7, 7), 1 / 7)
    probabilities[0] = [0.005, 0.3, 0.2, 0.15, 0.24, 0.1, 0.005]
    probabilities[5], probabilities[6] = [0.002, 0.002, 0.002, 0.002, 0.002, 0.002, 0.988], [0.002, 0.988, *[0.002] * 5]
    logits = ops.convert_to_tensor(np.log(probabilities).astype("float32"))

    def compute_logits(tokens, cache, index):
        return ops.take(logits, tokens[:, index - 1], axis=0), None, cache

    prompt, mask = np.zeros((1, 5), "int32"), np.arange(5)[None] < 1
    tokens = BeamSampler(num_beams=2)(compute_logits, prompt, ops.zeros((1, 1)), 1, mask, stop_token_ids=[1, 2, 3])
    assert ops.convert_to_numpy(tokens).tolist() == [[0, 5, 6, 1, 0]]
