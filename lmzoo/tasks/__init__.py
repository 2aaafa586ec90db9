"""Task classes, each of which works with the backbones of many families.

To register a task, import it here and run `make registry`, which writes the public names and the tables of the docs.
"""

from lmzoo.tasks.base.task import Task as Task
from lmzoo.tasks.bidirectional_lm import BidirectionalLM as BidirectionalLM
from lmzoo.tasks.causal_lm import CausalLM as CausalLM
from lmzoo.tasks.masked_lm import MaskedLM as MaskedLM
from lmzoo.tasks.multiple_choice import MultipleChoice as MultipleChoice
from lmzoo.tasks.pretrainer import Pretrainer as Pretrainer
from lmzoo.tasks.question_answerer import QuestionAnswerer as QuestionAnswerer
from lmzoo.tasks.seq2seq_lm import Seq2SeqLM as Seq2SeqLM
from lmzoo.tasks.text_classifier import TextClassifier as TextClassifier
from lmzoo.tasks.text_embedder import TextEmbedder as TextEmbedder
from lmzoo.tasks.text_regressor import TextRegressor as TextRegressor
from lmzoo.tasks.token_classifier import TokenClassifier as TokenClassifier
