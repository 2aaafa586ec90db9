"""A claim about pre-training at equal FLOPs: ModernBERT's network or BERT's, in the size `nano`."""

from __future__ import annotations

from benchmarks.evidence.claim import Claim, Comparison
from benchmarks.evidence.replaced import count_encoder_products, count_prediction_products
from benchmarks.evidence.trained import HOW, LENGTH, LOSS, VOCABULARY, Training, measure
from lmzoo.families.bert import BertConfig
from lmzoo.families.modernbert import ModernBertConfig
from lmzoo.text import Masking

TOKENS = 6_000_000  # tokens that BERT reads
SIZE = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 4,
    "num_heads": 2,
    "hidden_dim": 128,
    "intermediate_dim": 512,
}  # of `lmzoo pretrain --size nano`


def count_equal_tokens() -> int:
    """Return the number of tokens that ModernBERT reads with the FLOPs of BERT.

    As in `count_flops_per_token`, only matrix products count.
    """
    fraction = Masking().slots(LENGTH) / LENGTH
    bert = count_encoder_products(BertConfig(**SIZE)) + fraction * count_prediction_products(BertConfig(**SIZE))
    config = ModernBertConfig(**SIZE)
    modern = count_encoder_products(config, gated=True) + fraction * count_prediction_products(config)
    return int(TOKENS * bert / modern)


MODERN_TOKENS = count_equal_tokens()
MODERN, BERT = "ModernBERT", "BERT"
CLAIMS = (
    Claim(
        name="modern_network",
        title="ModernBERT's network at equal FLOPs",
        says="At equal FLOPs, ModernBERT's network has a lower loss than BERT's.",
        source="Warner et al. (2024), section 2.1",
        url="https://arxiv.org/abs/2412.13663",
        arms={
            BERT: Training(family="bert_modern_tokens", size="nano", tokens=TOKENS),
            MODERN: Training(family="modernbert", size="nano", tokens=MODERN_TOKENS),
        },
        run=measure,
        rule=(Comparison(MODERN, BERT, LOSS),),
        how=f"""{HOW} The models have 4 layers of width 128 (`--size nano`), and BERT reads {TOKENS:,} tokens.
ModernBERT's gated feed-forward networks have three matrices instead of two, so with the same FLOPs it reads
{MODERN_TOKENS:,} tokens. Both models read the same tokens of byte-level BPE, and learn from masks on 15% of them.""",
        limits=f"The paper does not report a loss of BERT's network on the same data. At {LENGTH} tokens, local"
        " attention sees the whole sequence, so it saves nothing.",
        reading="""ModernBERT's loss is lower by 0.46 nats, although it reads a fifth fewer tokens, and its three seeds
are close together. For parts of speech, its vectors are better by six points. BERT's seeds are further apart, in loss
and in parts of speech, because after 6 million tokens, BERT has just begun to use neighboring words. For SST-2, both
are equal within the spread over seeds.""",
    ),
)
