"""The benchmarks of claims: verdicts, the runner, the page, and the variants of families."""

from __future__ import annotations

import dataclasses
import re

import pytest

import lmzoo.registry.family
from benchmarks import common
from benchmarks.evidence import page
from benchmarks.evidence.claim import CONTRADICTED, NOT_RUN, OPEN, REPRODUCED, Claim, Comparison, Setting, verdict
from benchmarks.evidence.claims import CLAIMS
from benchmarks.evidence.runner import run_missing, stored_rows
from lmzoo.pretraining.encoders import build_encoder_backbone
from lmzoo.pretraining.recipe import Recipe

SETTING = Setting(common.ROOT, common.ROOT)
CALLS: list[tuple[float, int]] = []


def measure(value: float, seed: int, setting: Setting) -> dict[str, float]:
    """Return a toy measurement, which is the value of the arm and a little for the seed."""
    CALLS.append((value, seed))
    return {"accuracy": value + 0.01 * seed}


def claim_of(*rule: Comparison, **fields) -> Claim:
    texts = {field: field for field in ("name", "title", "says", "source", "url", "how", "limits")}
    return Claim(**{**texts, "arms": {"one": 0.7, "other": 0.5}, "run": measure, "rule": rule, **fields})


BETTER = Comparison("one", "other", "accuracy")


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Store the results of these tests in a temporary directory, and return the directory of the shipped ones."""
    CALLS.clear()
    shipped = common.RESULTS
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "describe_machine", dict)  # it would read all installed packages
    return shipped


def make_rows(measure_: str, **values) -> list[dict]:
    return [
        {"arm": arm, "seed": seed, measure_: value}
        for arm, arm_values in values.items()
        for seed, value in enumerate(arm_values)
    ]


@pytest.mark.parametrize(
    ("measure_", "least", "one", "other", "expected"),
    [
        ("accuracy", 0.0, (0.70, 0.71, 0.72), (0.60, 0.61, 0.62), REPRODUCED),
        ("accuracy", 0.0, (0.60, 0.61, 0.62), (0.70, 0.71, 0.72), CONTRADICTED),
        ("accuracy", 0.0, (0.60, 0.70, 0.80), (0.59, 0.69, 0.79), OPEN),
        # Means of 0.71 and 0.61, deviations of 0.01: twice the standard error is 0.0163.
        ("accuracy", 0.083, (0.70, 0.71, 0.72), (0.60, 0.61, 0.62), REPRODUCED),
        ("accuracy", 0.085, (0.70, 0.71, 0.72), (0.60, 0.61, 0.62), OPEN),
        # Half a point worse, where one point is allowed.
        ("accuracy", -0.01, (0.605, 0.605, 0.605), (0.61, 0.61, 0.61), REPRODUCED),
        ("accuracy", -0.01, (0.59, 0.59, 0.59), (0.61, 0.61, 0.61), CONTRADICTED),
        # Better, but by less than required, which contradicts nothing.
        ("accuracy", 0.05, (0.62, 0.62, 0.62), (0.61, 0.61, 0.61), OPEN),
        # Lower losses are better.
        ("held-out loss", 0.0, (4.0, 4.1, 4.2), (5.0, 5.1, 5.2), REPRODUCED),
        ("held-out loss", 0.0, (5.0, 5.1, 5.2), (4.0, 4.1, 4.2), CONTRADICTED),
        # Two seeds are too few.
        ("accuracy", 0.0, (0.70, 0.71), (0.60, 0.61, 0.62), NOT_RUN),
    ],
)
def test_verdicts_follow_from_means_and_deviations(measure_, least, one, other, expected):
    claim = claim_of(Comparison("one", "other", measure_, least))
    assert verdict(claim, make_rows(measure_, one=one, other=other)) == expected


def test_a_verdict_needs_all_comparisons():
    rows = make_rows("accuracy", one=(0.7, 0.7, 0.7), other=(0.6, 0.6, 0.6), third=(0.6, 0.7, 0.8))
    arms = {"one": 0, "other": 0, "third": 0}
    reproduced = BETTER
    undecided = Comparison("one", "third", "accuracy")
    contradicted = Comparison("other", "one", "accuracy")
    assert verdict(claim_of(reproduced, arms=arms), rows) == REPRODUCED
    assert verdict(claim_of(reproduced, undecided, arms=arms), rows) == OPEN
    assert verdict(claim_of(reproduced, undecided, contradicted, arms=arms), rows) == CONTRADICTED


def test_rules_must_name_arms():
    with pytest.raises(ValueError, match="'third'"):
        claim_of(Comparison("one", "third", "accuracy"))
    with pytest.raises(ValueError, match="compares"):
        claim_of()


def test_runs_are_stored_and_not_repeated():
    claim = claim_of(BETTER)
    run_missing([claim], [claim], SETTING)
    assert CALLS == [(0.7, 0), (0.5, 0), (0.7, 1), (0.5, 1), (0.7, 2), (0.5, 2)]
    rows = stored_rows(claim)
    assert [row["accuracy"] for row in rows if row["arm"] == "one"] == [0.7, 0.71, 0.72]
    assert verdict(claim, rows) == REPRODUCED
    run_missing([claim], [claim], SETTING)
    assert len(CALLS) == 6
    assert stored_rows(claim) == rows


def test_a_stopped_experiment_continues():
    def stopping(value: float, seed: int, setting: Setting) -> dict[str, float]:
        if len(CALLS) == 3:
            raise KeyboardInterrupt
        return measure(value, seed, setting)

    claim = claim_of(BETTER, run=stopping)
    with pytest.raises(KeyboardInterrupt):
        run_missing([claim], [claim], SETTING)
    assert len(stored_rows(claim)) == 3
    assert verdict(claim, stored_rows(claim)) == NOT_RUN
    run_missing([dataclasses.replace(claim, run=measure)], [], SETTING)
    assert CALLS == [(0.7, 0), (0.5, 0), (0.7, 1), (0.5, 1), (0.7, 2), (0.5, 2)]


def test_equal_runs_of_claims_are_shared():
    first = claim_of(BETTER)
    second = claim_of(Comparison("base", "new", "accuracy"), name="second", arms={"base": 0.7, "new": 0.1})
    unrelated = claim_of(BETTER, name="other", run=lambda value, seed, setting: {"accuracy": value})
    run_missing([first, second, unrelated], [first, second, unrelated], SETTING)
    assert len(CALLS) == 6 + 3
    base, new = stored_rows(second)[:2]
    expected = {"arm": "base", "seed": 0, "accuracy": 0.7, "from": "name"}
    assert {key: base[key] for key in expected} == expected
    assert "from" not in new
    assert not any("from" in row for row in stored_rows(unrelated))


def test_the_page_shows_the_results_of_a_claim(tmp_path):
    claim = claim_of(BETTER, reading="It is better.", name="toy", says="One is better.")
    assert "| [One is better.](#toy) | [source](url) | one; other | not run yet |" in page.summary([claim])
    assert "It is better." not in page.section(claim)
    run_missing([claim], [claim], SETTING)
    line = "accuracy: one 71.0 ± 1.0; other 51.0 ± 1.0 | **reproduced** |"
    assert f"| [One is better.](#toy) | [source](url) | {line}" in page.summary([claim])
    text = page.section(claim)
    assert "## title {#toy}" in text
    assert "*one* is better than *other* (accuracy): reproduced. **Verdict: reproduced.**" in text
    assert "| one | 71.0 ± 1.0 |" in text
    assert "It is better." in text
    both_ways = claim_of(BETTER, Comparison("other", "one", "accuracy"), name="toy")
    items = (
        "* *one* is better than *other* (accuracy): reproduced\n* *other* is better than *one* (accuracy): contradicted"
    )
    assert f"\n\n{items}\n\n**Verdict: contradicted.**" in page.section(both_ways)
    assert page.tally([claim, both_ways]).startswith("Of the 2 claims, 1 are reproduced, 1 are contradicted, 0 are")
    page.draw(claim, tmp_path / "toy.svg")
    picture = (tmp_path / "toy.svg").read_text("utf-8")
    assert re.findall(r">(one|other|accuracy \(%\))<", picture).count("one") == 1
    assert len(picture) < 100_000


def test_common_remarks_of_claims_are_shown_once():
    rule = Comparison("one", "other", "accuracy", -0.01)
    separate, first, second = (
        claim_of(rule, name=name, common=remark) for name, remark in (("a", ""), ("b", "Both."), ("c", "Both."))
    )
    text = page.page([separate, first, second])
    assert text.count("Both.") == 1
    assert text.index("{#a}") < text.index("Both.") < text.index("{#b}")
    assert "or at most 1 point worse (accuracy)" in text


def test_the_sites_page_has_the_stored_results(results, monkeypatch):
    """`python -m benchmarks.evidence --table` writes the page."""
    monkeypatch.setattr(common, "RESULTS", results)
    assert page.PAGE.read_text("utf-8") == page.page(CLAIMS)
    for claim in CLAIMS:
        rows = stored_rows(claim)
        assert {row["arm"] for row in rows} <= set(claim.arms), f"{claim.name} has rows of other arms"
        assert len({(row["arm"], row["seed"]) for row in rows}) == len(rows)
        assert page.PAGE.with_name(f"{claim.name}.svg").exists() == (verdict(claim, rows) != NOT_RUN)
        if verdict(claim, rows) == NOT_RUN:
            assert not claim.reading, f"{claim.name} has a reading, but no results"


@pytest.fixture
def variants(monkeypatch):
    """Register the variants of families while a test runs: other tests use all registered families."""
    from benchmarks.evidence import variants

    monkeypatch.setattr(lmzoo.registry.family, "_FAMILIES", lmzoo.registry.families())
    return variants


def backbone_of(variants, name: str):
    family = variants.get_or_register_family(name).name
    recipe = Recipe(family=family, size="4x64", vocabulary_size=31, sequence_length=8, positions=8, objective="none")
    return build_encoder_backbone(recipe, recipe.vocabulary_size)


def test_layers_share_the_parts_in_their_name(variants):
    """Four blocks have a shared part only once."""
    nothing, attention, feed_forward, everything = (
        backbone_of(variants, f"shared_{name}") for name in ("nothing", "attention", "feed_forward", "all")
    )
    block = nothing.blocks[0]
    attention_count = block.attention.count_params()
    feed_forward_count = block.intermediate_dense.count_params() + block.output_dense.count_params()
    total = nothing.count_params()
    assert total - attention.count_params() == 3 * attention_count
    assert total - feed_forward.count_params() == 3 * feed_forward_count
    assert total - everything.count_params() == 3 * block.count_params()
    assert len({id(block.attention) for block in attention.blocks}) == 1
    assert len({id(block.output_dense) for block in attention.blocks}) == 4


def test_variants_change_the_configuration(variants):
    assert backbone_of(variants, "dropout").config.dropout == 0.1
    assert backbone_of(variants, "embeddings_32").config.embedding_dim == 32
    assert backbone_of(variants, "embeddings_256").embedding_projection.kernel.shape == (256, 64)
    recipe = Recipe(family=variants.get_or_register_family("ngrams").name)
    assert (recipe.masking.ngram, recipe.masking.whole_word) == (3, True)
    assert Recipe(family=variants.get_or_register_family("whole_words").name).masking.ngram == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* texts were truncated to 64 tokens")
def test_an_arm_is_trained_once(variants, shared, tmp_path, monkeypatch):
    """After a trial on real text, the preset is stored for all measures, and the tokenized text for further arms."""
    from benchmarks.evidence import trained

    arm, setting = trained.Training(family="shared_attention", size="4x64"), Setting(shared("data"), tmp_path, True)
    scores = trained.judge_pairs(arm, 0, setting)
    assert set(scores) == {trained.NEXT, trained.ORDER}
    assert all(0 <= value <= 1 for value in scores.values())
    stored = {path.name for path in (tmp_path / "texts_WordPieceTokenizer").iterdir()}
    assert stored == {"held_out", "tokenizer", "train"}
    monkeypatch.setattr(trained, "pretrain", None)
    assert (trained.train(arm, 0, setting) / "model.weights.h5").exists()


def test_flops_of_span_corruption_are_counted_from_the_weights():
    """Each kernel multiplies the tokens of the source or of the target."""
    from benchmarks.evidence import span_corruption
    from benchmarks.evidence.trained import LENGTH
    from lmzoo.models import T5Backbone
    from lmzoo.text import SpanCorruption

    corruption = SpanCorruption()
    text_length = corruption.text_length(LENGTH)
    source, target = corruption.source_length(text_length), corruption.target_length(text_length)
    backbone = T5Backbone(**span_corruption.SIZES)
    products = 0
    for weight in backbone.weights:
        if weight.path.endswith("/kernel") or weight.path.endswith("token_embedding/embeddings"):
            reads_source = "encoder_block" in weight.path or re.search(r"source_attention/(key|value)/", weight.path)
            products += weight.value.shape[0] * weight.value.shape[1] * (source if reads_source else target)
    products += 2 * 2 * 128 * (source * source + target * target + target * source)  # attention in two blocks
    expected = 6 * products / text_length
    assert span_corruption.count_flops_per_token_of_text(backbone.config, corruption) == pytest.approx(expected)
    assert span_corruption.T5_TOKENS < span_corruption.TOKENS
