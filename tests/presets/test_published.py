"""The registry of published checkpoints, compared with formulas of their sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmzoo.presets import catalog
from lmzoo.registry.family import families

PUBLISHED = catalog._read_published()

UNCASED, CASED, MULTI_CASED, MULTI_UNCASED, CHINESE = 30522, 28996, 119547, 105879, 21128
VOCABULARY_OF_T5 = 32128
T5 = {"small": (512, 2048, 6, 8), "base": (768, 3072, 12, 12), "large": (1024, 4096, 24, 16)}
GATED_T5 = {"small": (512, 1024, 8, 6), "base": (768, 2048, 12, 12), "large": (1024, 2816, 24, 16)}
MINI_LM, SMALL, BASE, LARGE = (12, 384), (4, 512), (12, 768), (24, 1024)
MINI_LMS = {
    "all_minilm_l6_v1": 6, "all_minilm_l6_v2": 6, "all_minilm_l12_v2": 12, "msmarco_minilm_l6_cos_v5": 6,
    "msmarco_minilm_l12_cos_v5": 12, "multi_qa_minilm_l6_cos_v1": 6, "multi_qa_minilm_l6_dot_v1": 6,
    "paraphrase_minilm_l3_v2": 3, "paraphrase_minilm_l6_v2": 6, "paraphrase_minilm_l12_v2": 12,
}  # fmt: skip
ALBERT = {"base": BASE, "large": LARGE, "extra_large": (24, 2048), "extra_extra_large": (12, 4096)}

NAME = re.compile(
    r"(t5|[a-z]+2?)(_([a-z]+2?|[a-z]?\d+(\.\d+)?[a-z]?))*_(en|zh|multi)(_uncased)?(_sst2|_mnli)?|bge_llm_embedder"
    r"|marian_[a-z]{2}_[a-z]{2}|multilingual_e5_(base|large)|bge_(m3|reranker_(base|large|v2_m3))"
)
HANDLE = re.compile(
    r"hf://[\w-]+/[\w.-]+|kaggle://keras/[\w-]+/keras/[\w.]+/\d+|https://[\w.-]+/[\w./-]+(\.zip|\.tar\.gz|/)", re.ASCII
)


def block(width, intermediate):
    """Return the parameters of a Transformer layer: attention, feed-forward network, two layer normalizations."""
    return 4 * (width**2 + width) + 2 * width * intermediate + intermediate + width + 4 * width


def bert(vocabulary, layers, width, positions=512):
    pooler = width**2 + width
    return (vocabulary + positions + 4) * width + layers * block(width, 4 * width) + pooler


def roberta(layers, width):
    return (50265 + 514 + 3) * width + layers * block(width, 4 * width)


def mpnet():
    """Return the parameters: no segments or pooler, but a bias for 32 buckets of distances and 12 heads."""
    return (30527 + 514 + 2) * 768 + 32 * 12 + 12 * block(768, 3072)


def xlm_roberta(layers, width, positions=514):
    return (250002 + positions + 3) * width + layers * block(width, 4 * width)


def deberta(layers, width, vocabulary=128100):
    """Return the parameters: embeddings of 2 · 256 distances with a layer normalization instead of positions."""
    return (vocabulary + 2 + 2 * 256 + 2) * width + layers * block(width, 4 * width)


def electra(layers, width, embedding, intermediate):
    projection = (embedding + 1) * width if embedding != width else 0
    return (UNCASED + 516) * embedding + projection + layers * block(width, intermediate)


def albert(vocabulary, width):
    embeddings, mapping, pooler = (vocabulary + 516) * 128, 129 * width, width**2 + width
    return embeddings + mapping + block(width, 4 * width) + pooler


def modernbert(layers, width, intermediate):
    """Return the parameters: no biases or positions; LayerNorms have only scales, and one block has one fewer."""
    norms = 1 + 2 * layers - 1 + 1
    return 50368 * width + layers * (4 * width**2 + 3 * width * intermediate) + norms * width


def t5(width, intermediate, layers, heads, gated=False, encoder=False):
    """Return the parameters: no biases, heads of width 64, 32 buckets per stack; gated models do not tie logits."""
    attention = 4 * width * heads * 64
    network = (2 + gated) * width * intermediate
    ends = width + 32 * heads
    size = VOCABULARY_OF_T5 * width + layers * (attention + network + 2 * width) + ends
    if encoder:
        return size
    return size + gated * VOCABULARY_OF_T5 * width + layers * (2 * attention + network + 3 * width) + ends


def gpt2(layers, width):
    return (50257 + 1024 + 2) * width + layers * block(width, 4 * width)


def gpt():
    return (40478 + 512) * 768 + 12 * block(768, 3072)


def marian(vocabulary):
    """Return the parameters of 6 layers of width 512 per side; decoder layers have a second attention and its norm."""
    attention = 4 * (512**2 + 512) + 2 * 512
    return vocabulary * 512 + 12 * block(512, 2048) + 6 * attention


def xlnet(layers, width):
    """Return the parameters: heads have five kernels, three biases and two kinds of segments; the rest is BERT's."""
    return 32000 * width + layers * (block(width, 4 * width) + width**2 + (3 + 2 - 4) * width)


def distilbert(vocabulary):
    return (vocabulary + 514) * 768 + 6 * block(768, 3072)


def elmo(memory, width, highways):
    filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    features = sum(count for _, count in filters)
    characters = 262 * 16 + sum(count * (16 * size + 1) for size, count in filters)
    encoder = characters + highways * 2 * (features**2 + features) + features * width + width
    return encoder + 2 * 2 * (9 * width * memory + 4 * memory) + 4  # the mix: three layers and gamma


def small_berts():
    named = {(2, 128): "tiny", (4, 256): "mini", (4, 512): "small", (8, 512): "medium"}
    for layers in (2, 4, 6, 8, 10, 12):
        for width in (128, 256, 512, 768):
            size = named.get((layers, width), f"l{layers}_h{width}")
            yield f"bert_{size}_en_uncased", bert(UNCASED, layers, width)


def embedders():
    for name, layers in MINI_LMS.items():
        yield f"{name}_en", bert(UNCASED, layers, 384)
    for size, shape in {"small": MINI_LM, "base": BASE, "large": LARGE}.items():
        yield f"bge_{size}_en", bert(UNCASED, *shape)
        yield f"bge_{size}_v1.5_en", bert(UNCASED, *shape)
    for size, shape in {"small_v1.5": SMALL, "base": BASE, "large": LARGE}.items():
        yield f"bge_{size}_zh", bert(CHINESE, *shape)
    for size, shape in {"base": BASE, "large": LARGE}.items():
        yield f"bge_{size}_v1.5_zh", bert(CHINESE, *shape)
    yield "bge_llm_embedder", bert(UNCASED, *BASE)
    yield "mxbai_embed_large_v1_en", bert(UNCASED, *LARGE)
    yield "mxbai_embed_2d_large_v1_en", bert(UNCASED, *LARGE)
    yield "mxbai_embed_xsmall_v1_en", bert(UNCASED, 6, 384, positions=4096)


SIZES = {
    **dict(small_berts()),
    "bert_tiny_en_uncased_sst2": bert(UNCASED, 2, 128),
    "bert_base_en_uncased": bert(UNCASED, *BASE),
    "bert_base_en": bert(CASED, *BASE),
    "bert_base_multi": bert(MULTI_CASED, *BASE),
    "bert_base_multi_uncased": bert(MULTI_UNCASED, *BASE),
    "bert_base_zh": bert(CHINESE, *BASE),
    "bert_large_en_uncased": bert(UNCASED, *LARGE),
    "bert_large_en": bert(CASED, *LARGE),
    "bert_large_wwm_en_uncased": bert(UNCASED, *LARGE),
    "bert_large_wwm_en": bert(CASED, *LARGE),
    **dict(embedders()),
    "mpnet_base_en_uncased": mpnet(),
    "all_mpnet_base_v2_en": mpnet(),
    "multi_qa_mpnet_base_dot_v1_en": mpnet(),
    "paraphrase_mpnet_base_v2_en": mpnet(),
    "roberta_base_en": roberta(*BASE),
    "roberta_large_en": roberta(*LARGE),
    "roberta_large_en_mnli": roberta(*LARGE),
    "distil_roberta_base_en": roberta(6, 768),
    "electra_small_discriminator_en_uncased": electra(12, 256, 128, 1024),
    "electra_small_generator_en_uncased": electra(12, 256, 128, 1024),
    "electra_base_discriminator_en_uncased": electra(12, 768, 768, 3072),
    "electra_base_generator_en_uncased": electra(12, 256, 768, 1024),
    "electra_large_discriminator_en_uncased": electra(24, 1024, 1024, 4096),
    "electra_large_generator_en_uncased": electra(24, 256, 1024, 1024),
    "xlm_roberta_base_multi": xlm_roberta(*BASE),
    "xlm_roberta_large_multi": xlm_roberta(*LARGE),
    "multilingual_e5_base": xlm_roberta(*BASE),
    "multilingual_e5_large": xlm_roberta(*LARGE),
    "bge_m3": xlm_roberta(*LARGE, positions=8194),
    "bge_reranker_base": xlm_roberta(*BASE),
    "bge_reranker_large": xlm_roberta(*LARGE),
    "bge_reranker_v2_m3": xlm_roberta(*LARGE, positions=8194),
    "modernbert_base_en": modernbert(22, 768, 1152),
    "modernbert_large_en": modernbert(28, 1024, 2624),
    "modernbert_embed_base_en": modernbert(22, 768, 1152),
    "gte_modernbert_base_en": modernbert(22, 768, 1152),
    "ettin_encoder_17m_en": modernbert(7, 256, 384),
    "ettin_encoder_32m_en": modernbert(10, 384, 576),
    "ettin_encoder_68m_en": modernbert(19, 512, 768),
    "ettin_encoder_150m_en": modernbert(22, 768, 1152),
    "ettin_encoder_400m_en": modernbert(28, 1024, 2624),
    "ettin_encoder_1b_en": modernbert(28, 1792, 3840),
    "deberta_v3_extra_small_en": deberta(*MINI_LM),
    "deberta_v3_small_en": deberta(6, 768),
    "deberta_v3_base_en": deberta(*BASE),
    "deberta_v3_large_en": deberta(*LARGE),
    "deberta_v3_base_multi": deberta(*BASE, vocabulary=251000),
    "deberta_v3_base_mnli_fever_anli_en": deberta(*BASE),
    "nli_deberta_v3_base_en": deberta(*BASE),
    **{f"albert_{size}_en_uncased": albert(30000, width) for size, (_, width) in ALBERT.items()},
    **{f"albert_{size}_v1_en_uncased": albert(30000, width) for size, (_, width) in ALBERT.items()},
    **{f"albert_{size}_zh": albert(CHINESE, width) for size, (_, width) in ALBERT.items()},
    "distil_bert_base_en_uncased": distilbert(UNCASED),
    "distil_bert_base_en": distilbert(CASED),
    "distil_bert_base_multi": distilbert(MULTI_CASED),
    "gpt2_base_en": gpt2(*BASE),
    "gpt2_medium_en": gpt2(*LARGE),
    "gpt2_large_en": gpt2(36, 1280),
    "gpt2_extra_large_en": gpt2(48, 1600),
    "distil_gpt2_en": gpt2(6, 768),
    "gpt_base_en_uncased": gpt(),
    "xlnet_base_en": xlnet(12, 768),
    "xlnet_large_en": xlnet(24, 1024),
    "marian_de_en": marian(58101),
    "marian_en_de": marian(58101),
    **{f"t5_{size}_multi": t5(*sizes) for size, sizes in T5.items()},
    **{f"t5_1.1_{size}_en": t5(*sizes, gated=True) for size, sizes in GATED_T5.items()},
    **{f"flan_t5_{size}_multi": t5(*sizes, gated=True) for size, sizes in GATED_T5.items()},
    **{f"sentence_t5_{size}_en": t5(*T5[size], encoder=True) for size in ("base", "large")},
    "elmo_small_en": elmo(1024, 128, 1),
    "elmo_medium_en": elmo(2048, 256, 1),
    "elmo_original_en": elmo(4096, 512, 2),
    "elmo_original_5.5b_en": elmo(4096, 512, 2),
}


def test_formulas_give_published_sizes():
    assert bert(UNCASED, *BASE) == 109_482_240
    assert roberta(*LARGE) == 354_310_144
    assert mpnet() == 109_486_464 - (768 * 768 + 768)  # as transformers counts all-mpnet-base-v2, without its pooler
    assert electra(24, 256, 1024, 1024) == 51_065_344 - (256 * 256 + 256)  # as KerasHub says, without its pooler
    # KerasHub's numbers; its model lacks the two unused positions and the row of segments.
    assert xlm_roberta(*BASE) == 277_450_752 + 3 * 768
    assert xlm_roberta(*LARGE, positions=8194) == 566_702_080 + 3 * 1024
    assert albert(30000, 4096) == 222_595_584
    assert deberta(*BASE) == 183_831_552  # as KerasHub says
    assert deberta(*BASE, vocabulary=251000) == 278_218_752  # as KerasHub says
    assert distilbert(UNCASED) == 66_362_880
    assert gpt2(*BASE) == 124_439_808  # as KerasHub says
    assert t5(*T5["base"]) == 222_903_552  # as KerasHub says
    assert t5(*GATED_T5["base"], gated=True) == 247_577_856  # as KerasHub says
    assert gpt2(48, 1600) == 1_557_611_200
    assert elmo(4096, 512, 2) == 93_600_848 + 16 + 4  # published, the row of no token, the mix


def test_names_and_sizes_match_the_formulas():
    assert {name: entry["parameter_count"] for name, entry in PUBLISHED.items()} == SIZES


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_entry_is_consistent(name):
    entry = PUBLISHED[name]
    assert NAME.fullmatch(name)
    assert entry["family"] in families()
    family = name.split("_")[0]
    assert family not in families() or family == entry["family"]
    language = re.search("_(zh|multi)(?=_|$)", name)
    if family == "marian":
        assert entry["languages"] == name.split("_")[1:]
    elif entry["family"] == "xlm_roberta":
        assert entry["languages"] == ["mul"]
    else:
        assert entry["languages"] == [{"zh": "zh", "multi": "mul"}[language[1]] if language else "en"]
    assert entry["license"] in {"Apache-2.0", "MIT", "NOASSERTION"}
    assert entry["description"].endswith(".")
    assert re.fullmatch("[0-9a-f]{40}", entry.get("revision", "0" * 40))
    files = entry.get("files", {})
    for file in files.values():
        assert file
        assert file.keys() <= {"url", "size", "sha256"}
        assert re.fullmatch("[0-9a-f]{64}", file.get("sha256", "0" * 64))
        assert file.get("url", entry["handle"]).startswith(entry["handle"])
    urls = ["url" in file for file in files.values()]
    assert any(urls) == all(urls or [False]) == entry["handle"].startswith("https://")
    if entry.get("size_estimated"):
        assert entry["size_bytes"] == 4 * entry["parameter_count"]
    else:
        assert entry["size_bytes"] == max(file.get("size", 0) for file in files.values())
        assert 1 < entry["size_bytes"] / (4 * entry["parameter_count"]) < 1.02


def test_handles_are_well_formed_and_unique():
    handles = [handle for entry in PUBLISHED.values() for handle in (entry["handle"], *entry.get("alternatives", ()))]
    assert [handle for handle in handles if not HANDLE.fullmatch(handle)] == []
    assert len(set(handles)) == len(handles)


def test_handles_and_revisions_equal_the_stored_list():
    """The weights of a name must not change unnoticed: change published_handles.txt with the handle."""
    stored = (Path(__file__).parent / "published_handles.txt").read_text("utf-8").splitlines()
    sources = {name: entry["handle"] + f"@{entry.get('revision', '')}".rstrip("@") for name, entry in PUBLISHED.items()}
    assert [f"{name} {source}" for name, source in sorted(sources.items())] == stored
    revisions = [entry["revision"] for entry in PUBLISHED.values() if "revision" in entry]
    assert len(revisions) > 5
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in revisions)
