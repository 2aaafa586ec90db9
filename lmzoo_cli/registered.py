"""Names that help shows before Keras is loaded. `make registry` writes this file."""

PRETRAINED_FAMILIES = (
    "albert",
    "bert",
    "distilbert",
    "electra",
    "elmo",
    "ffnn_lm",
    "gpt",
    "gpt2",
    "lstm_lm",
    "roberta",
    "xlm_roberta",
    "xlnet",
)

# Name, kind of head, class in files, how examples are read, names of the parts of an input.
TASKS = (
    ("causal-lm", "causal_lm", "lmzoo>CausalLM", "texts", ("prompt",)),
    ("choice", "multiple_choice", "lmzoo>MultipleChoice", "choices", ("prompt",)),
    ("classifier", "classification", "lmzoo>TextClassifier", "classes", ("text", "text_pair")),
    ("embedder", "embedding", "lmzoo>TextEmbedder", "pairs", ("text", "text_pair")),
    ("masked-lm", "masked_lm", "lmzoo>MaskedLM", "texts", ("text", "text_pair")),
    ("multi-label", "classification", "lmzoo>TextClassifier", "sets of classes", ("text", "text_pair")),
    ("qa", "question_answering", "lmzoo>QuestionAnswerer", "questions", ("question",)),
    ("regressor", "regression", "lmzoo>TextRegressor", "numbers", ("text", "text_pair")),
    ("tagger", "token_classification", "lmzoo>TokenClassifier", "words", ("text", "text_pair")),
    ("translation", "seq2seq_lm", "lmzoo>Seq2SeqLM", "translations", ("text", "text_pair")),
)
