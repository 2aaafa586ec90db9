"""The kinds of files and directories that lmzoo reads and writes, each with functions that save and load it.

A kind's `load` returns the whole content, as named arrays and texts, so that tests can compare any two artifacts.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow
from pyarrow import parquet

import lmzoo
from lmzoo.checkpoints.formats.hdf5 import Hdf5File, write_hdf5
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors
from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.checkpoints.hugging_face.tensorflow import open_tensorflow_model
from lmzoo.checkpoints.tokenizers.files import read_tokenizer, write_tokenizer
from lmzoo.data.corpora import Preparation, TokenCorpus, prepare_corpus, read_documents, write_corpus
from lmzoo.data.readers import read_choices, read_conll, read_squad, read_table
from lmzoo.files.archives import unpack
from lmzoo.models import Backbone, NgramLM, StaticEmbedder, Task, TextClassifier, TextEmbedder
from lmzoo.presets import keras_preset
from lmzoo.presets.source import open_source
from lmzoo.registry.family import Family, families
from lmzoo.static_vectors import Subwords
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_texts
from lmzoo.text import BytePairTokenizer, Preprocessor, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.run_state import RunStates

Content = dict[str, Any]
Tensors = list[tuple[str, np.ndarray]]
TEXTS = tiny_texts(5)


@dataclass(frozen=True)
class ArtifactKind:
    """A kind of file or directory.

    Attributes:
        path: Path of the artifact, relative to the directory that it is saved in.
        save: Function that saves version 0 or 1 of the artifact in a directory.
        load: Function that loads the artifact from that directory.
        vouched: Whether lmzoo notices every change, by a checksum of its own or of the format.
        forks: Whether the artifact can be saved after `os.fork`, which TensorFlow's threads do not survive.
        resumes: Whether saving continues an unfinished attempt instead of replacing it.
        needs: Name of the required backend, or "" for any.
    """

    path: str
    save: Callable[[Path, int], object]
    load: Callable[[Path], Content]
    vouched: bool = False
    forks: bool = True
    resumes: bool = False
    needs: str = ""


# === Models ===


def family_named(kind: str) -> Family:
    return families()[kind if kind in families() else "bert"]


def preprocessor_of(kind: str) -> Preprocessor:
    return tiny_preprocessor(family_named(kind))


@functools.cache
def model(kind: str, version: int) -> Any:
    """Return a tiny classifier or a family's backbone; versions differ in their weights."""
    keras.config.disable_traceback_filtering()
    family = family_named(kind)
    small: dict[str, Any] = {} if kind == "elmo" else {"num_layers": 1}
    if kind == "marian":
        small["decoder_layers"] = 1
    if kind == "keras_hub":
        small["activation"] = "gelu_tanh"  # the only activation of KerasHub's BERT
    backbone, preprocessor = tiny_backbone(family, **small), tiny_preprocessor(family)
    classes = ["bad", "fine", "good"]
    result = TextClassifier(backbone, preprocessor, labels=classes) if kind == "classifier" else backbone
    for _ in range(1 + version):
        randomize(result)
    return result


def content_of(saved_object: Any) -> Content:
    """Return the weights, the configuration and, for a task, the features of some texts."""
    content: Content = {f"weight {i}": keras.ops.convert_to_numpy(v) for i, v in enumerate(saved_object.weights)}
    content["configuration"] = json.dumps(_without_names(saved_object.get_config()), sort_keys=True)
    if (preprocessor := getattr(saved_object, "preprocessor", None)) is not None:
        content |= preprocessor(TEXTS)
    return content


def _without_names(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_names(value) for key, value in config.items() if key != "name"}
    return [_without_names(value) for value in config] if isinstance(config, (list, tuple)) else config


def save_keras(folder: Path, version: int) -> None:
    model("classifier", version).save(folder / "model.keras")


def save_preset(folder: Path, version: int) -> None:
    model("classifier", version).save_to_preset(folder / "preset")


def save_preset_in_half_precision(folder: Path, version: int) -> None:
    task = model("classifier", version)
    keras_preset.save_preset(task, folder / "preset", preprocessor=task.preprocessor, weights_dtype="float16")


def save_preset_in_int8(folder: Path, version: int) -> None:
    model("classifier", version).save_to_preset(folder / "preset", weights_dtype="int8")


def save_preset_of_several_tasks(folder: Path, version: int) -> None:
    task = model("classifier", version)
    task.backbone.save_to_preset(folder / "preset", tasks={"reviews": task})


def load_one_of_several_tasks(folder: Path) -> Content:
    return content_of(TextClassifier.from_preset(folder / "preset", task="reviews"))


def save_preset_without_manifest(folder: Path, version: int) -> None:
    save_preset(folder, version)
    (folder / "preset/manifest.json").unlink()


def save_preprocessor(folder: Path, version: int) -> None:
    preprocessor = preprocessor_of("bert")
    Preprocessor(preprocessor.tokenizer, preprocessor.packing, 13 + version).save_to_preset(folder / "preset")


def load_preprocessor(folder: Path) -> Content:
    preprocessor = Preprocessor.from_preset(folder / "preset")
    return {"configuration": json.dumps(preprocessor.get_config()), **preprocessor(TEXTS)}


def load_classifier(folder: Path) -> Content:
    return content_of(TextClassifier.from_preset(folder / "preset"))


def checkpoint_kind(to: str, family: str, **flags: Any) -> ArtifactKind:
    """Return the kind for a backbone and its tokenizer in another library's format."""

    def save(folder: Path, version: int) -> None:
        lmzoo.save_checkpoint(model(family, version), folder / to, to, preprocessor=preprocessor_of(family))

    def load(folder: Path) -> Content:
        features = {} if family == "elmo" else open_source(folder / to).preprocessor()(TEXTS)
        return content_of(Backbone.from_preset(folder / to)) | features

    return ArtifactKind(to, save, load, **flags)


@functools.cache
def embedder(version: int) -> Any:
    """Return a tiny embedder with a projection layer of every kind."""
    layers = [
        {"kind": "normalize"},
        {"kind": "dense", "units": 11, "activation": "tanh"},
        {"kind": "layer_norm"},
        {"kind": "dropout", "rate": 0.1},
    ]
    backbone, prompts = tiny_backbone(families()["bert"], num_layers=1), {"query": "the "}
    model = TextEmbedder(backbone, preprocessor_of("bert"), ["cls", "mean"], projection=layers, prompts=prompts)
    for _ in range(1 + version):
        randomize(model)
    return model


def save_sentence_transformers(folder: Path, version: int) -> None:
    lmzoo.save_checkpoint(embedder(version), folder / "sentences", "hf")


def load_sentence_transformers(folder: Path) -> Content:
    return content_of(TextEmbedder.from_preset(folder / "sentences"))


# === Exports ===


def export_kind(path: str, load: Callable[[Path], Content]) -> ArtifactKind:
    """Return the kind for a classifier that is exported to another runtime."""

    def save(folder: Path, version: int) -> None:
        model("classifier", version).export(folder / path, verbose=False)

    return ArtifactKind(path, save, load, forks=False, needs="tensorflow")


def load_saved_model(folder: Path) -> Content:
    from lmzoo.serving.model_versions import ModelVersion

    outputs = ModelVersion(folder / "served/1").predict({"inputs": TEXTS})["outputs"]
    return {name: np.asarray(value) for name, value in outputs.items()}


def _features() -> Content:
    return {name: np.asarray(array, "int32") for name, array in preprocessor_of("bert")(TEXTS).items()}


def load_onnx(folder: Path) -> Content:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, _features())
    return {"logits": logits}


def load_litert(folder: Path) -> Content:
    import tensorflow as tf

    runner = tf.lite.Interpreter(str(folder / "model.tflite")).get_signature_runner()
    return dict(runner(**_features()))


# === Files of tensors ===


def tensors(version: int) -> Tensors:
    numbers = np.random.default_rng(version + 43)
    shapes = [(), (7,), (3, 0), (5, 11), (2, 3, 13), (97, 31)]
    return [(f"encoder/layer_{n}/kernel", numbers.random(shape).astype("float32")) for n, shape in enumerate(shapes)]


def tensor_kind(
    path: str,
    write: Callable[[Path, Tensors], object],
    read: Callable[[Path], TensorFile],
    **flags: Any,
) -> ArtifactKind:
    """Return the kind for a file that holds only tensors."""

    def load(folder: Path) -> Content:
        file = read(folder / path)
        with contextlib.closing(file) if hasattr(file, "close") else contextlib.nullcontext():
            return {name: file.read(name) for name in file.names()}

    return ArtifactKind(path, lambda folder, version: write(folder / path, tensors(version)), load, **flags)


def write_sharded(folder: Path, all_tensors: Tensors) -> None:
    """Write tensors in two parts and an index, as transformers stores large models."""
    folder.mkdir(exist_ok=True)
    index = {}
    for part in range(2):
        name = f"model-0000{part + 1}-of-00002.safetensors"
        write_safetensors(folder / name, all_tensors[part::2])
        index |= dict.fromkeys((tensor for tensor, _ in all_tensors[part::2]), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_tensorflow_model(folder: Path, all_tensors: Tensors, parts: bool = False) -> None:
    """Write tensors as transformers 4 stored the weights of its TensorFlow classes."""
    folder.mkdir(exist_ok=True)
    if not parts:
        write_hdf5(folder / "tf_model.h5", [(f"bert/tf_bert_model_1/{name}:0", array) for name, array in all_tensors])
        return
    index = {}
    for part in range(2):
        file = f"tf_model-0000{part + 1}-of-00002.h5"
        write_hdf5(folder / file, [(f"{name}:0", array) for name, array in all_tensors[part::2]])
        index |= {f"tf_bert_model_1/{name}:0": file for name, _ in all_tensors[part::2]}
    (folder / "tf_model.h5.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_tensorflow(prefix: Path, all_tensors: Tensors) -> None:
    from lmzoo.checkpoints.formats.tensorflow import write_tensorflow_checkpoint

    prefix.parent.mkdir(exist_ok=True)
    write_tensorflow_checkpoint(prefix, iter(all_tensors))


def read_tensorflow(prefix: Path) -> TensorFile:
    from lmzoo.checkpoints.formats.tensorflow import TensorFlowCheckpoint

    return TensorFlowCheckpoint(prefix)


def write_torch(path: Path, all_tensors: Tensors, new: bool) -> None:
    import torch

    state = {name: torch.tensor(array) for name, array in all_tensors}
    torch.save(state, path, _use_new_zipfile_serialization=new)


def read_torch(path: Path) -> TensorFile:
    from lmzoo.checkpoints.formats.torch import TorchFile

    return TorchFile(path)


# === Training states and corpora ===


def save_state(folder: Path, version: int) -> None:
    RunStates(folder / "run").write(version + 1, iter(tensors(version)), {"done": version + 1})


def load_state(folder: Path) -> Content:
    state = RunStates(folder / "run").newest()
    assert state is not None
    arrays = {name: state.tensors.read(name) for name in state.tensors.names()}
    return {**arrays, "position": json.dumps(state.position)}


def train(folder: Path, version: int) -> None:
    """Train for six steps (three in version 0), saving each; continue an unfinished run if there is one."""
    backbone = tiny_backbone(families()["bert"], num_layers=1, dropout=0.1)
    task = TextClassifier(backbone, preprocessor_of("bert"), num_classes=2)
    task.compile(run_eagerly=keras.backend.backend() == "tensorflow")
    callback = ResumableCheckpoint(folder / "training", every=1, keep=2)
    texts = tiny_texts(12)
    task.fit(
        texts, [i % 2 for i in range(12)], epochs=2 if version else 1, batch_size=4, verbose=0, callbacks=[callback]
    )


def load_training(folder: Path) -> Content:
    state = RunStates(folder / "training").newest()
    assert state is not None
    return {name: state.tensors.read(name) for name in state.tensors.names()}


DOCUMENTS = [[f"{text} {i}" for text in tiny_texts(3)] for i in range(60)]


def save_corpus(folder: Path, version: int) -> None:
    documents = DOCUMENTS[: 60 if version else 59]
    write_corpus(documents, preprocessor_of("bert").tokenizer, folder / "corpus", shard_tokens=100, verbose=False)


def load_corpus(folder: Path) -> Content:
    corpus = TokenCorpus(folder / "corpus")
    content: Content = {"words": json.dumps(corpus.tokenizer.tokenize(TEXTS))}
    for number, shard in enumerate(corpus.shards):
        content[f"tokens {number}"] = np.array(shard.token_ids)
        content[f"sentences {number}"] = np.array(shard.sentence_splits)
        content[f"documents {number}"] = np.array(shard.document_splits)
    return content


def save_prepared(folder: Path, version: int) -> None:
    with tempfile.TemporaryDirectory() as texts:
        for number in range(3):
            documents = DOCUMENTS[number * 20 : number * 20 + 20 - (1 - version)]
            Path(texts, f"{number}.txt").write_text("\n\n".join("\n".join(document) for document in documents))
        preparation = Preparation(duplicates="exact", shard_tokens=100)
        prepare_corpus(texts, preprocessor_of("bert").tokenizer, folder / "corpus", preparation, verbose=False)


@functools.cache
def ngrams(version: int) -> NgramLM:
    language_model = NgramLM(order=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about too little text
        language_model.fit(DOCUMENTS[: 60 if version else 59], verbose=False)
    return language_model


def ngram_kind(path: str) -> ArtifactKind:
    def save(folder: Path, version: int) -> None:
        ngrams(version).save(folder / path, verbose=False)

    def load(folder: Path) -> Content:
        language_model = NgramLM.load(folder / path, verbose=False)
        return {"words": json.dumps(language_model.vocabulary), "scores": json.dumps(language_model.score(TEXTS))}

    return ArtifactKind(path, save, load)


def word_vectors(version: int) -> StaticEmbedder:
    rng = np.random.default_rng(version)
    words = [f"word{i}" for i in range(59)]
    subwords = Subwords(3, 5, rng.normal(size=(61, 7)).astype("float32"))
    return StaticEmbedder(words, rng.normal(size=(59, 7)).astype("float32"), subwords)


def content_of_word_vectors(path: Path) -> Content:
    embedder = StaticEmbedder.from_preset(path, verbose=False)
    content: Content = {"words": json.dumps(embedder.words), "vectors": np.array(embedder.vectors)}
    return content if embedder.subwords is None else content | {"subwords": np.array(embedder.subwords.vectors)}


def word_vectors_kind(format: str) -> ArtifactKind:
    def save(folder: Path, version: int) -> None:
        word_vectors(version).save(folder / "vectors", format, verbose=False)

    return ArtifactKind("vectors", save, lambda folder: content_of_word_vectors(folder / "vectors"))


def save_word_vectors(folder: Path, version: int) -> None:
    word_vectors(version).save_to_preset(folder / "preset")


# === Vocabularies, archives and data ===


def vocabulary_kind(tokenizer: Tokenizer, peer: str) -> ArtifactKind:
    def save(folder: Path, version: int) -> None:
        (folder / "tokenizer").mkdir(exist_ok=True)
        write_tokenizer(tokenizer, folder / "tokenizer", 61, peer)

    def load(folder: Path) -> Content:
        loaded_tokenizer = read_tokenizer(folder / "tokenizer", type(tokenizer))
        return {
            "ids": json.dumps(loaded_tokenizer.tokenize(TEXTS)),
            "configuration": json.dumps(loaded_tokenizer.get_config()),
        }

    return ArtifactKind("tokenizer", save, load)


def archive_kind(suffix: str) -> ArtifactKind:
    def save(folder: Path, version: int) -> None:
        with tempfile.TemporaryDirectory() as content:
            save_preset(Path(content), version)
            kind = "zip" if suffix == "zip" else "gztar"
            shutil.make_archive(str(folder / "archive"), kind, Path(content, "preset"))

    def load(folder: Path) -> Content:
        with tempfile.TemporaryDirectory() as content:
            unpack(folder / f"archive.{suffix}", Path(content))
            files = sorted(path for path in Path(content).rglob("*") if path.is_file())
            return {path.relative_to(content).as_posix(): np.frombuffer(path.read_bytes(), "uint8") for path in files}

    return ArtifactKind(f"archive.{suffix}", save, load, vouched=True)


def data_kind(path: str, text: str, read: Callable[[Path], object]) -> ArtifactKind:
    def save(folder: Path, version: int) -> None:
        data = text.encode()
        (folder / path).write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)

    return ArtifactKind(path, save, lambda folder: {"content": repr(read(folder / path))})


_SQUAD = {"data": [{"paragraphs": [{"context": t, "qas": [{"id": str(i), "question": "the film", "answers": [
    {"text": t.split()[1], "answer_start": len(t.split()[0]) + 1}]}]} for i, t in enumerate(TEXTS)]}]}  # fmt: skip
_TSV = "text\tlabel\n" + "".join(f"{text} äöü\t{i % 3}\n" for i, text in enumerate(TEXTS))
_ROWS = "text,label\n" + "".join(f'"{text}, äöü",{i % 3}\n' for i, text in enumerate(TEXTS))
_JSONL = "".join(json.dumps({"text": text, "label": i % 3}) + "\n" for i, text in enumerate(TEXTS))
_CHOICES = "".join(
    json.dumps({"prompt": t, "choices": ["good", "bad"], "label": i % 2}) + "\n" for i, t in enumerate(TEXTS)
)
_CONLL = "\n".join("".join(f"{word}\t{'O' if len(word) % 2 else 'B-PER'}\n" for word in t.split()) for t in TEXTS)


def _table(path: Path) -> object:
    return read_table(path, label="label")


def save_parquet(folder: Path, version: int) -> None:
    table = pyarrow.table({"text": TEXTS, "label": [str(i % 3) for i in range(len(TEXTS))]})
    parquet.write_table(table, folder / "data.parquet", write_page_checksum=True)


KINDS: dict[str, ArtifactKind] = {
    "keras": ArtifactKind("model.keras", save_keras, lambda f: content_of(Task.load(f / "model.keras")), vouched=True),
    "preset": ArtifactKind("preset", save_preset, load_classifier, vouched=True),
    "preset in half precision": ArtifactKind("preset", save_preset_in_half_precision, load_classifier, vouched=True),
    "preset in int8": ArtifactKind("preset", save_preset_in_int8, load_classifier, vouched=True),
    "preset of several tasks": ArtifactKind(
        "preset", save_preset_of_several_tasks, load_one_of_several_tasks, vouched=True
    ),
    "preprocessor": ArtifactKind("preset", save_preprocessor, load_preprocessor, vouched=True),
    "preset without manifest": ArtifactKind("preset", save_preset_without_manifest, load_classifier),
    "hf": checkpoint_kind("hf", "bert"),
    "sentence transformers": ArtifactKind("sentences", save_sentence_transformers, load_sentence_transformers),
    "hf of two languages": checkpoint_kind("hf", "marian"),
    "hf of a decoder": checkpoint_kind("hf", "gpt2"),
    "tf1": checkpoint_kind("tf1", "bert", forks=False, needs="tensorflow"),
    "keras_hub": checkpoint_kind("keras_hub", "keras_hub"),
    "bilm": checkpoint_kind("bilm", "elmo"),
    "saved model": export_kind("served/1", load_saved_model),
    "onnx": export_kind("model.onnx", load_onnx),
    "litert": export_kind("model.tflite", load_litert),
    "state": ArtifactKind("run", save_state, load_state, vouched=True),
    "training": ArtifactKind("training", train, load_training, vouched=True, resumes=True, forks=False),
    "corpus": ArtifactKind("corpus", save_corpus, load_corpus, vouched=True, resumes=True),
    "prepared corpus": ArtifactKind("corpus", save_prepared, load_corpus, vouched=True, resumes=True),
    "arpa": ngram_kind("model.arpa"),
    "arpa.gz": ngram_kind("model.arpa.gz"),
    "word2vec": word_vectors_kind("word2vec"),
    "word2vec, binary": word_vectors_kind("word2vec_binary"),
    "glove": word_vectors_kind("glove"),
    "fasttext": word_vectors_kind("fasttext"),
    "word vectors": ArtifactKind(
        "preset", save_word_vectors, lambda folder: content_of_word_vectors(folder / "preset"), vouched=True
    ),
    "safetensors": tensor_kind("model.safetensors", write_safetensors, SafetensorsFiles),
    "sharded safetensors": tensor_kind("sharded", write_sharded, SafetensorsFiles),
    "hdf5": tensor_kind("weights.hdf5", write_hdf5, Hdf5File),
    "tf_model": tensor_kind("tf_whole", write_tensorflow_model, open_tensorflow_model),
    "sharded tf_model": tensor_kind(
        "tf_parts", functools.partial(write_tensorflow_model, parts=True), open_tensorflow_model
    ),
    "tensorflow": tensor_kind(
        "checkpoint/model.ckpt", write_tensorflow, read_tensorflow, vouched=True, forks=False, needs="tensorflow"
    ),
    "torch": tensor_kind("model.bin", functools.partial(write_torch, new=True), read_torch, vouched=True),
    "old torch": tensor_kind("old.bin", functools.partial(write_torch, new=False), read_torch),
    "zip": archive_kind("zip"),
    "tar.gz": archive_kind("tar.gz"),
    "word pieces": vocabulary_kind(WordPieceTokenizer.of_words(["film", "good"], 23), "BertTokenizer"),
    "byte pairs": vocabulary_kind(BytePairTokenizer.of_words(["film", "good"], 271), "RobertaTokenizer"),
    "sentence pieces": vocabulary_kind(SentencePieceTokenizer.of_words(["film", "good"], 23), "AlbertTokenizer"),
    "csv": data_kind("data.csv", _ROWS, _table),
    "csv.gz": data_kind("data.csv.gz", _ROWS, _table),
    "tsv": data_kind("data.tsv", _TSV, _table),
    "jsonl": data_kind("data.jsonl", _JSONL, _table),
    "parquet": ArtifactKind(
        "data.parquet", save_parquet, lambda folder: {"content": repr(_table(folder / "data.parquet"))}
    ),
    "conll": data_kind("data.conll", _CONLL, read_conll),
    "squad": data_kind("data.json", json.dumps(_SQUAD), read_squad),
    "choices": data_kind(
        "choices.jsonl",
        _CHOICES,
        functools.partial(read_choices, prompt="prompt", start=None, choices="choices"),
    ),
    "documents": data_kind("data.txt", "\n\n".join(TEXTS), lambda path: list(read_documents(path))),
}
