"""Files of LoRA's low-rank updates."""

from __future__ import annotations

import contextlib

import h5py
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.formats.hdf5 import Hdf5File, write_hdf5
from lmzoo.errors import PresetError
from lmzoo.families.backbone import Backbone
from lmzoo.layers.sublayers import sublayers
from tests.reference.weights import difference, padded_batch, run, tiny_backbone, to_numpy

pytestmark = pytest.mark.usefixtures("eager")


def make_lora_backbone(rank: int = 2, targets: tuple[str, ...] = ("query", "value"), **config: object) -> Backbone:
    """Return a backbone whose low-rank updates are not zero."""
    backbone, rng = tiny_backbone(num_layers=2, **config), np.random.default_rng(7)
    backbone.enable_lora(rank, targets)
    for weight in backbone.trainable_weights:
        weight.assign(rng.normal(scale=0.1, size=weight.shape))
    return backbone


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_are_saved_and_loaded(tmp_path, dtype):
    path, batch = tmp_path / "a.lora.h5", padded_batch()
    backbone = make_lora_backbone(3, ("query", "output_dense"), dtype=dtype)
    expected = run(backbone, batch)
    backbone.save_lora_weights(path)
    with contextlib.closing(Hdf5File(path)) as file:
        names = set(file.names())
    assert "lora/block_1/attention/query/lora_kernel_b" in names
    assert len(names) == 1 + 2 * 2 * 3

    loaded = tiny_backbone(num_layers=2, dtype=dtype)
    assert difference(run(loaded, batch), expected) > 1e-3
    loaded.load_lora_weights(str(path))
    assert difference(run(loaded, batch), expected) == 0
    assert loaded.lora_rank == 3
    assert {w.path for w in loaded.trainable_weights} == {w.path for w in backbone.trainable_weights}

    adapted_before = tiny_backbone(num_layers=2, dtype=dtype)
    adapted_before.enable_lora(3, ("query", "output_dense"))
    adapted_before.load_lora_weights(path)
    assert difference(run(adapted_before, batch), expected) == 0


def test_updates_of_token_embeddings_are_saved_and_loaded(tmp_path):
    path, batch = tmp_path / "a.lora.h5", padded_batch()
    backbone = make_lora_backbone(3, ("token_embedding",))
    backbone.save_lora_weights(path)
    loaded = tiny_backbone(num_layers=2)
    loaded.load_lora_weights(path)
    assert difference(run(loaded, batch), run(backbone, batch)) == 0


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")
@pytest.mark.parametrize("name", ["query", "token_embedding"])
@pytest.mark.usefixtures("no_garbage_collection")
def test_updates_of_int4_weights_are_saved_and_loaded(tmp_path, name):
    """Two int4 weights share a byte, so that the stored weights have another shape than the updates."""
    path, batch = tmp_path / "a.lora.h5", padded_batch()
    models = [tiny_backbone(num_layers=1) for _ in range(3)]
    for model in models:
        model.quantize("int4")
    backbone, plain, adapted = models
    backbone.enable_lora(3, (name,))
    adapted.enable_lora(3, (name,))
    for weight in backbone.trainable_weights:
        weight.assign(np.random.default_rng(7).normal(scale=0.1, size=weight.shape))
    expected = run(backbone, batch)
    assert difference(run(plain, batch), expected) > 1e-3
    backbone.save_lora_weights(path)
    for model in (plain, adapted):
        model.load_lora_weights(path)
        assert difference(run(model, batch), expected) == 0


def test_files_of_weights_hold_the_updates(tmp_path):
    path, batch = tmp_path / "best.weights.h5", padded_batch()
    backbone = make_lora_backbone()
    backbone.save_weights(path)
    restored = tiny_backbone(num_layers=2, seed=29)
    restored.enable_lora(2)
    restored.load_weights(path)
    for weight, expected in zip(restored.weights, backbone.weights, strict=True):
        np.testing.assert_allclose(to_numpy(weight), to_numpy(expected), atol=1e-6, err_msg=weight.path)
    plain = tiny_backbone(num_layers=2, seed=29)
    plain.load_weights(path)
    assert difference(run(plain, batch), run(backbone, batch)) <= 1e-5


def test_presets_hold_no_updates_of_float_weights(tmp_path):
    backbone = make_lora_backbone()
    backbone.save_to_preset(tmp_path / "preset")
    with contextlib.closing(Hdf5File(tmp_path / "preset" / "model.weights.h5")) as file:
        assert not [name for name in file.names() if "lora" in name]
    loaded = Backbone.from_preset(tmp_path / "preset")
    assert difference(run(loaded, padded_batch()), run(backbone, padded_batch())) <= 1e-5
    assert all(layer.keeps_updates for layer in sublayers(backbone) if getattr(layer, "lora_enabled", False))


def test_lora_is_enabled_once():
    backbone = make_lora_backbone()
    trainable = {weight.path for weight in backbone.trainable_weights}
    for arguments in ((2,), (3, ("key",))):
        with pytest.raises(ValueError, match=r"^This BertBackbone already has LoRA of rank 2\. Name all layers"):
            backbone.enable_lora(*arguments)
    assert {weight.path for weight in backbone.trainable_weights} == trainable


def test_checkpoints_of_other_libraries_hold_the_sum(tmp_path):
    backbone = make_lora_backbone(activation="gelu_tanh")
    lmzoo.save_checkpoint(backbone, tmp_path / "hf", to="hf")
    loaded = Backbone.from_preset(tmp_path / "hf")
    assert difference(run(loaded, padded_batch()), run(backbone, padded_batch())) <= 1e-5
    exact = make_lora_backbone()
    with pytest.warns(UserWarning, match="This model has the exact GELU"):
        lmzoo.save_checkpoint(exact, tmp_path / "keras_hub", to="keras_hub")


def test_wrong_files_leave_the_model_as_it_was(tmp_path):
    path = tmp_path / "a.lora.h5"
    make_lora_backbone().save_lora_weights(path)
    with contextlib.closing(Hdf5File(path)) as file:
        arrays = {name: file.read(name) for name in file.names()}
    backbone = tiny_backbone(num_layers=2)
    before = [to_numpy(w) for w in backbone.weights]
    query = "lora/block_0/attention/query/lora_kernel_a"
    wrong_contents = [
        ({**arrays, "lora/rank": None}, "holds no low-rank updates"),
        ({**arrays, "lora/rank": np.array(0.5)}, "holds no low-rank updates"),
        ({**arrays, "lora/7/lora_kernel_a": np.ones(3)}, "updates of '7', but this BertBackbone has no"),
        ({**arrays, query: np.ones((5, 2))}, "the updates of 'block_0/attention/query' must have the sh"),
        ({**arrays, query: None}, "the updates of 'block_0/attention/query' must have the shapes"),
        ({**arrays, "lora/rank": np.array(5)}, "must have the shapes"),
    ]
    for number, (content, message) in enumerate(wrong_contents):
        file = tmp_path / f"{number}.lora.h5"
        write_hdf5(file, [(name, array) for name, array in content.items() if array is not None])
        with pytest.raises(PresetError, match=rf"{number}\.lora\.h5 .*{message}"):
            backbone.load_lora_weights(file)
    damaged = tmp_path / "damaged.lora.h5"
    damaged.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(PresetError, match=r"damaged\.lora\.h5 is not a whole HDF5 file"):
        backbone.load_lora_weights(damaged)
    with pytest.raises(PresetError, match=r"none\.lora\.h5 does not exist"):
        backbone.load_lora_weights(tmp_path / "none.lora.h5")
    assert backbone.lora_rank is None
    assert all(map(np.array_equal, before, [to_numpy(w) for w in backbone.weights]))


def test_other_ranks_layers_and_paths_are_refused(tmp_path):
    path = tmp_path / "a.lora.h5"
    backbone = make_lora_backbone()
    backbone.save_lora_weights(path)
    for model, message in (
        (make_lora_backbone(3), "of rank 2, but the LoRA of this BertBackbone has rank 3"),
        (
            make_lora_backbone(2, ("key", "value")),
            "of other layers than .*: only one of them has 'block_0/attention/key'",
        ),
    ):
        with pytest.raises(ValueError, match=rf"a\.lora\.h5 holds updates {message}\. Load them into a model without"):
            model.load_lora_weights(path)
    for call in (backbone.save_lora_weights, backbone.load_lora_weights):
        with pytest.raises(ValueError, match=r"end in `\.lora\.h5`, got '.*a\.h5'"):
            call(tmp_path / "a.h5")
    with pytest.raises(ValueError, match=r"This BertBackbone has no LoRA to save\. Call `enable_lora\(rank\)` first"):
        tiny_backbone().save_lora_weights(path)


def test_updates_that_are_not_finite_are_reported(tmp_path):
    backbone = make_lora_backbone()
    backbone.trainable_weights[0].assign(np.full(backbone.trainable_weights[0].shape, np.nan))
    backbone.save_lora_weights(tmp_path / "a.lora.h5")
    with pytest.warns(UserWarning, match=r"a\.lora\.h5: 'block_0/attention/query/lora_kernel_a' is NaN or infinite"):
        tiny_backbone(num_layers=2).load_lora_weights(tmp_path / "a.lora.h5")


def test_a_failed_save_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.lora.h5"
    make_lora_backbone().save_lora_weights(path)
    before, backbone = path.read_bytes(), make_lora_backbone(3)
    monkeypatch.setattr(h5py.File, "create_dataset", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backbone.save_lora_weights(path)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
