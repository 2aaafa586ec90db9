"""Word vectors that do not depend on the context: word2vec, GloVe and fastText."""

from lmzoo.static_vectors.glove import GloveLoss
from lmzoo.static_vectors.static_embedder import Neighbor, StaticEmbedder
from lmzoo.static_vectors.subwords import Subwords
from lmzoo.static_vectors.vector_files import read_vectors
from lmzoo.static_vectors.vector_table import VectorTable

__all__ = ["GloveLoss", "Neighbor", "StaticEmbedder", "Subwords", "VectorTable", "read_vectors"]
