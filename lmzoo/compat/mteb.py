"""Adapters with which mteb evaluates embedders and rerankers (Muennighoff et al., 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from lmzoo.common.arguments import require
from lmzoo.search.nearest import similarities
from lmzoo.tasks.text_embedder import TextEmbedder
from lmzoo.tasks.text_regressor import TextRegressor

_BATCH_SIZE = 32
_FRAMEWORKS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}


class MtebEncoder:
    """An embedder for `mteb.evaluate`.

    As in mteb, texts get the embedder's prompt for the name or the type of the task. If there is none, queries and
    documents get the default prompts of `embed_queries` and `embed_documents`, and texts in tasks without queries get
    the embedder's default prompt.

    Args:
        embedder: `lmzoo.models.TextEmbedder`.
        name: name of the model in the results, as `"organization/model"`.
        revision: version of the model in the results.

    Raises:
        ImportError: If mteb is not installed.

    Example:

    ```{.python .notest}
    import mteb
    import lmzoo
    from lmzoo.compat.mteb import MtebEncoder

    embedder = lmzoo.models.TextEmbedder.from_preset("all_minilm_l6_v2_en")
    results = mteb.evaluate(MtebEncoder(embedder, "lmzoo/all_minilm_l6_v2_en"), mteb.get_tasks(["STSBenchmark"]))
    ```
    """

    def __init__(self, embedder: TextEmbedder, name: str, revision: str | None = None) -> None:
        require(isinstance(embedder, TextEmbedder), "embedder", "a TextEmbedder", embedder)
        self.embedder = embedder
        similarity_fields = {"similarity_fn_name": embedder.similarity, "embed_dim": embedder.output_shape[-1]}
        self.mteb_model_meta = _make_meta(embedder, name, revision, **similarity_fields)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: Any = None, **kwargs: Any
    ) -> np.ndarray:
        """Return the embeddings of n texts, float32 (n, H), where H is their width.

        Args:
            inputs: iterable of batches, each a dict with a list of texts as `"text"`.
            task_metadata: mteb's description of the task.
            prompt_type: mteb's `PromptType.query` or `PromptType.document`, or None for a task without queries.
            **kwargs: `batch_size`, and arguments of mteb that lmzoo does not use.
        """
        from mteb.models.abs_encoder import get_prompt_name

        texts = _collect_texts(inputs)
        batch_size = kwargs.get("batch_size", _BATCH_SIZE)
        prompt_name = get_prompt_name(self.embedder.prompts, task_metadata, prompt_type)
        if prompt_type is None:
            return self.embedder.embed(texts, batch_size, prompt_name=prompt_name)
        is_query = prompt_type.value == "query"
        embed = self.embedder.embed_queries if is_query else self.embedder.embed_documents
        return embed(texts, batch_size, prompt_name)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of n embeddings to each of m other embeddings, as a torch tensor (n, m)."""
        import torch

        rows, columns = (np.atleast_2d(np.asarray(array, "float32")) for array in (embeddings1, embeddings2))
        return torch.from_numpy(similarities(rows, columns, self.embedder.similarity))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities of n pairs of embeddings, which are paired by index, as a torch tensor (n,)."""
        import torch

        pairs = zip(np.asarray(embeddings1, "float32"), np.asarray(embeddings2, "float32"), strict=True)
        scores = [similarities(first[None], second[None], self.embedder.similarity)[0, 0] for first, second in pairs]
        return torch.tensor(scores)


class MtebCrossEncoder:
    """A reranker for `mteb.evaluate`.

    Args:
        reranker: `lmzoo.models.TextRegressor`, such as a cross-encoder.
        name: name of the model in the results, as `"organization/model"`.
        revision: version of the model in the results.

    Raises:
        ImportError: If mteb is not installed.

    Example: see `lmzoo.compat.mteb.MtebEncoder`.
    """

    def __init__(self, reranker: TextRegressor, name: str, revision: str | None = None) -> None:
        require(isinstance(reranker, TextRegressor), "reranker", "a TextRegressor", reranker)
        self.reranker = reranker
        self.mteb_model_meta = _make_meta(reranker, name, revision, model_type=["cross-encoder"])

    def predict(
        self, inputs1: Iterable[Mapping[str, Any]], inputs2: Iterable[Mapping[str, Any]], **kwargs: Any
    ) -> np.ndarray:
        """Return the scores of n pairs of texts, float32 (n,).

        Args:
            inputs1: iterable of batches of first texts, the queries, each a dict with a list of texts as `"text"`.
            inputs2: iterable of batches of second texts, in the same form.
            **kwargs: `batch_size`, and arguments of mteb that lmzoo does not use.
        """
        pairs = (_collect_texts(inputs1), _collect_texts(inputs2))
        return np.array(self.reranker.score(pairs, kwargs.get("batch_size", _BATCH_SIZE)), "float32")


def _collect_texts(inputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the texts of all batches."""
    return [text for batch in inputs for text in batch["text"]]


def _make_meta(task: TextEmbedder | TextRegressor, name: str, revision: str | None, **fields: Any) -> Any:
    """Return mteb's description of a model, a `ModelMeta`.

    Args:
        task: The model.
        name: Name of the model in the results.
        revision: Version of the model in the results.
        **fields: Further fields of `ModelMeta`.

    Raises:
        ImportError: If mteb is not installed.
    """
    try:
        from mteb.models.model_meta import ModelMeta
    except ImportError:
        raise ImportError("mteb is not installed: pip install 'lmzoo[mteb]'.") from None
    return ModelMeta.create_empty(
        overwrites={
            "name": name,
            "revision": revision,
            "n_parameters": task.count_params(),
            "max_tokens": task.text_preprocessor.sequence_length,
            "framework": [_FRAMEWORKS[keras.backend.backend()]],
            **fields,
        }
    )
