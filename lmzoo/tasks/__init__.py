"""One class per task, for every family."""

from lmzoo.tasks.base.task import Task
from lmzoo.tasks.bidirectional_lm import BidirectionalLM
from lmzoo.tasks.causal_lm import CausalLM
from lmzoo.tasks.masked_lm import MaskedLM
from lmzoo.tasks.multiple_choice import MultipleChoice
from lmzoo.tasks.pretrainer import Pretrainer
from lmzoo.tasks.question_answerer import QuestionAnswerer
from lmzoo.tasks.seq2seq_lm import Seq2SeqLM
from lmzoo.tasks.text_classifier import TextClassifier
from lmzoo.tasks.text_embedder import TextEmbedder
from lmzoo.tasks.text_regressor import TextRegressor
from lmzoo.tasks.token_classifier import TokenClassifier

__all__ = [
    "BidirectionalLM",
    "CausalLM",
    "MaskedLM",
    "MultipleChoice",
    "Pretrainer",
    "QuestionAnswerer",
    "Seq2SeqLM",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextRegressor",
    "TokenClassifier",
]
