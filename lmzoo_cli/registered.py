"""Names that help shows before Keras is loaded. `make registry` writes this file."""

PRETRAINED_FAMILIES = (
    "albert",
    "bert",
    "deberta_v3",
    "distilbert",
    "electra",
    "elmo",
    "ffnn_lm",
    "gpt",
    "gpt2",
    "lstm_lm",
    "modernbert",
    "mpnet",
    "roberta",
    "t5",
    "xlm_roberta",
    "xlnet",
)

TASKS = (
    "causal-lm",
    "choice",
    "classifier",
    "embedder",
    "masked-lm",
    "multi-label",
    "qa",
    "regressor",
    "tagger",
    "translation",
)
