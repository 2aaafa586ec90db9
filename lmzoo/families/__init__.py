"""Model families, one package each, and their shared base classes.

To register a family, import it here; `make registry` then writes its public names and the tables in the docs.
"""

from lmzoo.families.albert import AlbertBackbone as AlbertBackbone
from lmzoo.families.backbone import Backbone as Backbone
from lmzoo.families.bert import BertBackbone as BertBackbone
from lmzoo.families.deberta_v3 import DebertaV3Backbone as DebertaV3Backbone
from lmzoo.families.distilbert import DistilBertBackbone as DistilBertBackbone
from lmzoo.families.electra import ElectraBackbone as ElectraBackbone
from lmzoo.families.elmo import ElmoBackbone as ElmoBackbone
from lmzoo.families.ffnn_lm import FfnnLmBackbone as FfnnLmBackbone
from lmzoo.families.gpt import GptBackbone as GptBackbone
from lmzoo.families.gpt2 import Gpt2Backbone as Gpt2Backbone
from lmzoo.families.lstm_lm import LstmLmBackbone as LstmLmBackbone
from lmzoo.families.marian import MarianBackbone as MarianBackbone
from lmzoo.families.marian import MarianEncoderBackbone as MarianEncoderBackbone
from lmzoo.families.modernbert import ModernBertBackbone as ModernBertBackbone
from lmzoo.families.mpnet import MpnetBackbone as MpnetBackbone
from lmzoo.families.roberta import RobertaBackbone as RobertaBackbone
from lmzoo.families.static_words import StaticBackbone as StaticBackbone
from lmzoo.families.t5 import T5Backbone as T5Backbone
from lmzoo.families.t5 import T5EncoderBackbone as T5EncoderBackbone
from lmzoo.families.xlm_roberta import XlmRobertaBackbone as XlmRobertaBackbone
from lmzoo.families.xlnet import XlnetBackbone as XlnetBackbone

DEFAULT_FAMILY = "bert"  # family to pre-train if none is named
