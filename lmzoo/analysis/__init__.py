"""Model analysis: attention, layers, word senses, surprisal, attributions and errors."""

from lmzoo.analysis.attention import Attention, HeadStatistics, attention, head_statistics, join_words
from lmzoo.analysis.attention_view import write_attention
from lmzoo.analysis.attribution import integrated_gradients, leave_out
from lmzoo.analysis.attribution_view import write_attributions
from lmzoo.analysis.explained import Attribution
from lmzoo.analysis.layers import (
    LayerChanges,
    Mix,
    Probe,
    anisotropy,
    layer_changes,
    layer_similarity,
    linear_cka,
    mix_weights,
    probe,
)
from lmzoo.analysis.reading import ReadText, hidden_states
from lmzoo.analysis.report_view import write_report
from lmzoo.analysis.vector_view import plot_vectors
from lmzoo.analysis.words import Sense, WordSurprisal, senses, surprisal

__all__ = [
    "Attention",
    "Attribution",
    "HeadStatistics",
    "LayerChanges",
    "Mix",
    "Probe",
    "ReadText",
    "Sense",
    "WordSurprisal",
    "anisotropy",
    "attention",
    "head_statistics",
    "hidden_states",
    "integrated_gradients",
    "join_words",
    "layer_changes",
    "layer_similarity",
    "leave_out",
    "linear_cka",
    "mix_weights",
    "plot_vectors",
    "probe",
    "senses",
    "surprisal",
    "write_attention",
    "write_attributions",
    "write_report",
]
