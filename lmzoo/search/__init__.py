"""Search among vectors: exact, in quantized vectors, or approximate with faiss; and mining of hard negatives."""

from lmzoo.search.faiss_index import FaissIndex
from lmzoo.search.index import VectorIndex, search_vectors
from lmzoo.search.nearest import Hit
from lmzoo.search.negatives import MinedNegatives, mine_negatives
from lmzoo.search.quantized import QuantizedIndex

__all__ = [
    "FaissIndex",
    "Hit",
    "MinedNegatives",
    "QuantizedIndex",
    "VectorIndex",
    "mine_negatives",
    "search_vectors",
]
