"""Looking inside models: attention, vectors layer by layer, the senses of words, and what is surprising in a text."""

from lmzoo.analysis.attention import Attention, HeadStatistics, attention, head_statistics, join_words
from lmzoo.analysis.attention_view import write_attention
from lmzoo.analysis.layers import (
    LayerChanges,
    Probe,
    anisotropy,
    layer_changes,
    layer_similarity,
    linear_cka,
    probe,
)
from lmzoo.analysis.reading import ReadText, hidden_states
from lmzoo.analysis.words import Sense, WordSurprisal, senses, surprisal

__all__ = [
    "Attention",
    "HeadStatistics",
    "LayerChanges",
    "Probe",
    "ReadText",
    "Sense",
    "WordSurprisal",
    "anisotropy",
    "attention",
    "head_statistics",
    "hidden_states",
    "join_words",
    "layer_changes",
    "layer_similarity",
    "linear_cka",
    "probe",
    "senses",
    "surprisal",
    "write_attention",
]
