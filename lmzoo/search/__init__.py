"""Search among vectors: exact, in quantized vectors, or approximate with faiss; and hard negatives from it."""

from lmzoo.search.faiss_index import FaissIndex
from lmzoo.search.index import VectorIndex, search_vectors
from lmzoo.search.nearest import Hit
from lmzoo.search.quantized import QuantizedIndex

__all__ = ["FaissIndex", "Hit", "QuantizedIndex", "VectorIndex", "search_vectors"]
