"""Evaluation scores for translations."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from lmzoo.evaluation.reports import Report


def compare_translations(translations: Sequence[str], references: Sequence[str]) -> Report:
    """Compute corpus BLEU (Papineni et al., 2002) and chrF (Popović, 2015) with sacrebleu's default settings.

    Args:
        translations: n translations by a model.
        references: n reference translations.

    Raises:
        ImportError: If sacrebleu is not installed.
        ValueError: If the numbers of translations and references differ.

    Example:

    ```{.python .notest}
    from lmzoo.evaluation.translations import compare_translations

    compare_translations(["A cat sits there."], ["A cat sits there."]).scores  # {'bleu': 100.0, 'chrf': 100.0}
    ```
    """
    if len(translations) != len(references):
        raise ValueError(f"Got {len(translations)} translations but {len(references)} references.")
    sacrebleu = import_sacrebleu()
    corpora = list(translations), [list(references)]
    return Report(
        {"bleu": float(sacrebleu.corpus_bleu(*corpora).score), "chrf": float(sacrebleu.corpus_chrf(*corpora).score)}
    )


def import_sacrebleu() -> ModuleType:
    """Import sacrebleu, which scores translations.

    Raises:
        ImportError: If sacrebleu is not installed.
    """
    try:
        import sacrebleu
    except ImportError:
        raise ImportError("Translations are scored by sacrebleu: pip install 'lmzoo[translation]'.") from None
    return sacrebleu
