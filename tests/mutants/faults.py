"""Small faults, each of which the test suite must find; they were written from the code, without knowing the tests."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault: in `file`, the text `before`, which occurs once, is replaced by `after`.

    Attributes:
        name: Short description, such as "attention ignores the padding mask".
        file: Path of the module, relative to `lmzoo/`, or to the repository for the command line.
        before: Part of a line, or a few whole lines.
        after: Replacement.
    """

    name: str
    file: str
    before: str
    after: str

    @property
    def path(self) -> str:
        """Path of the module, relative to the repository."""
        return self.file if self.file.startswith("lmzoo_cli/") else f"lmzoo/{self.file}"


FAULTS = (
    # === Layers ===
    Fault(
        "attention ignores the padding mask",
        "layers/attention.py",
        'scores = scores + ops.cast(padding, "float32")',
        'scores = ops.cast(scores, "float32")',
    ),
    Fault(
        "attention ignores the bias of positions where the model is in half precision",
        "layers/attention.py",
        "if bias is not None:",
        'if bias is not None and query.dtype == "float32":',
    ),
    Fault(
        "the softmax of attention is computed in half precision where the model is",
        "layers/attention.py",
        'scores = ops.cast(ops.matmul(query, ops.swapaxes(key, 2, 3)), "float32")  # (B, N, S, T)\n'
        "    if bias is not None:\n"
        '        scores = scores + ops.cast(bias, "float32")\n'
        "    padding = ops.expand_dims(ops.where(padding_mask, 0.0, MASKED), (1, 2))  # (B, 1, 1, T)\n"
        '    scores = scores + ops.cast(padding, "float32")',
        "scores = ops.matmul(query, ops.swapaxes(key, 2, 3))  # (B, N, S, T)\n"
        "    if bias is not None:\n"
        "        scores = scores + ops.cast(bias, scores.dtype)\n"
        "    padding = ops.expand_dims(ops.where(padding_mask, 0.0, MASKED), (1, 2))  # (B, 1, 1, T)\n"
        "    scores = scores + ops.cast(padding, scores.dtype)",
    ),
    Fault(
        "a position of a decoder sees the one after it",
        "layers/attention.py",
        "key_positions > query_positions if",
        "key_positions > query_positions + 1 if",
    ),
    Fault(
        "with a cache, positions are counted from each call's first",
        "layers/attention.py",
        "else offsets + index",
        "else offsets + 0 * index",
    ),
    Fault(
        "a block of local attention sees one position too few",
        "layers/local_attention.py",
        "ops.abs(distances) > reach",
        "ops.abs(distances) >= reach",
    ),
    Fault(
        "chosen vectors are taken to be those of the first positions",
        "families/transformer.py",
        "mask, queries, positions=positions, bias=bias)",
        "mask, queries, bias=bias)",
    ),
    Fault(
        "local attention has the wavelength of global attention",
        "families/modernbert/backbone.py",
        "if is_global else config.local_rotary_max_wavelength",
        "if is_global else config.rotary_max_wavelength",
    ),
    Fault(
        "in a graph, a mark behind another of the same kind is composed",
        "text/graphs/composition.py",
        "((last_ranks == 0) | (last_ranks < current_ranks))",
        "((last_ranks == 0) | (last_ranks <= current_ranks))",
    ),
    Fault(
        "a decoder computes its last block for chosen positions as if it were an encoder",
        "families/transformer.py",
        "if self.causal:\n            raise",
        "if False:\n            raise",
    ),
    Fault(
        "an input of another model takes the place of one of a model's own",
        "families/named_inputs.py",
        "return {name: inputs[name] for name in self.input}",
        "return dict(inputs)",
    ),
    Fault(
        "dropout does not scale what it keeps",
        "layers/dropout.py",
        "ops.where(bits >= threshold, inputs * scale, ops.zeros_like(inputs))",
        "ops.where(bits >= threshold, inputs, ops.zeros_like(inputs))",
    ),
    Fault(
        "every LayerNorm has the epsilon of BERT",
        "layers/normalization.py",
        "tf.cast(self.epsilon, x.dtype)",
        "tf.cast(1e-12, x.dtype)",
    ),
    Fault(
        "positions of RoBERTa start at 3 instead of 2",
        "layers/embeddings.py",
        "return ops.cumsum(mask, axis=1) * mask + self.first_position - 1",
        "return ops.cumsum(mask, axis=1) * mask + self.first_position",
    ),
    Fault(
        "ScalarMix weights layers by its scalars without a softmax",
        "layers/scalar_mix.py",
        "weights = ops.softmax(scalars) if len(layers) > 1 else ops.ones_like(scalars)",
        "weights = scalars if len(layers) > 1 else ops.ones_like(scalars)",
    ),
    Fault(
        "the memory of LSTMs is not clipped",
        "layers/lstm.py",
        "memory = _clip(f * memory + i * j, cell_clip)  # (B, D)",
        "memory = f * memory + i * j  # (B, D)",
    ),
    Fault(
        "the gate of highway layers lets pass what it should hold back",
        "layers/character_encoder.py",
        "return gate * ops.relu(self.transform(inputs)) + (1 - gate) * inputs",
        "return (1 - gate) * ops.relu(self.transform(inputs)) + gate * inputs",
    ),
    Fault(
        "the sampled softmax does not correct the scores of sampled words for how likely they were drawn",
        "layers/sampled_softmax.py",
        "sample_logits = self._compute_logits(vectors, sample_kernel, sample_bias) - corrections[1]  # (N, S)",
        "sample_logits = self._compute_logits(vectors, sample_kernel, sample_bias)  # (N, S)",
    ),
    Fault(
        "choices that are not there are rivals of those that are",
        "layers/choice_axis.py",
        "return ops.where(is_present, ops.reshape(scores, ops.shape(is_present)), ABSENT)",
        "return ops.reshape(scores, ops.shape(is_present))",
    ),
    Fault(
        "words of a text that come second are aligned with that text itself",
        "layers/esim.py",
        "second_to_first = ops.expand_dims(is_second, 2) & ops.expand_dims(is_first, 1)",
        "second_to_first = ops.expand_dims(is_second, 2) & ops.expand_dims(is_second, 1)",
    ),
    Fault(
        "the question attends to all tokens of a context, also to padding",
        "layers/bidaf.py",
        "context_probabilities = ops.expand_dims(masked_softmax(max_scores, context_mask), 1)",
        "context_probabilities = ops.expand_dims(ops.softmax(max_scores), 1)",
    ),
    Fault(
        "LSTMs that read backwards go on from the text after",
        "layers/bilstm.py",
        "is_first = ops.pad(is_new_segment, ((0, 0), (0, 1) if reverse else (1, 0)))",
        "is_first = ops.pad(is_new_segment, ((0, 0), (1, 0)))",
    ),
    Fault(
        "recurrent kernels lose elements outside of training, too",
        "layers/recurrent.py",
        "recurrent_kernel = self.weight_dropout(recurrent_kernel, training=training)",
        "recurrent_kernel = self.weight_dropout(recurrent_kernel, training=True)",
    ),
    # === Models ===
    Fault(
        "groups of ALBERT are applied in reverse order",
        "families/albert/backbone.py",
        "for group in self.groups:",
        "for group in reversed(self.groups):",
    ),
    Fault(
        "files of ELMo hold the two directions in each other's place",
        "families/elmo/checkpoints.py",
        'cell_path = f"RNN_{direction_index}/RNN/MultiRNNCell/Cell{{i}}/LSTMCell"',
        'cell_path = f"RNN_{1 - direction_index}/RNN/MultiRNNCell/Cell{{i}}/LSTMCell"',
    ),
    Fault(
        "BERT from KerasHub computes the exact GELU instead of the approximation",
        "families/bert/checkpoints.py",
        'constants={"activation": "gelu_tanh"},',
        'constants={"activation": "gelu"},',
    ),
    Fault(
        "classifiers on DistilBERT have tanh instead of relu between their layers",
        "families/distilbert/__init__.py",
        'classifier={"activation": "relu", "input_dropout": False},',
        'classifier={"activation": "tanh", "input_dropout": False},',
    ),
    # === Text ===
    Fault(
        "places of words in exported models count the space that is put in front of each text",
        "text/graphs/word_splitting.py",
        "starts = tf.where(begins)[:, 0] - tf.gather(codes.row_starts(), rows) - 1  # (m,), without",
        "starts = tf.where(begins)[:, 0] - tf.gather(codes.row_starts(), rows)  # (m,), without",
    ),
    Fault(
        "an inside label may follow any other, and only its own type may follow it",
        "text/span_labels.py",
        "np.where(must_continue | must_be_continued[:, None], continues, True)",
        "np.where((must_continue | must_be_continued)[:, None], continues, True)",
    ),
    Fault(
        "the order of examples does not depend on the seed",
        "text/batching.py",
        "rng = np.random.default_rng((*self.seed, epoch))",
        "rng = np.random.default_rng(epoch)",
    ),
    Fault(
        "windows overlap by the stride instead of beginning so many tokens apart",
        "text/windows.py",
        "stride = np.minimum(room, doc_stride)  # (n,)",
        "stride = np.maximum(1, room - doc_stride)  # (n,)",
    ),
    Fault(
        "of pairs of equally long texts the first one is cut before the second",
        "text/packing.py",
        "half = (budget + 1) // 2",
        "half = budget // 2",
    ),
    Fault(
        "segment ids are all zero",
        "text/preprocessor.py",
        'features["segment_ids"] = is_second.astype("int32") * mask',
        'features["segment_ids"] = np.zeros_like(mask)',
    ),
    Fault(
        "masking chooses special tokens, too",
        "text/mask_tokens.py",
        "return ~np.isin(ids, special_ids)",
        "return ids != tokenizer.pad_id",
    ),
    Fault(
        "nine of ten chosen tokens become masks instead of eight",
        "text/masking.py",
        "draws < self.masked, mask_id, np.where(draws < self.masked + self.random, random_ids, targets[chosen])",
        "draws < 0.9, mask_id, np.where(draws < 0.95, random_ids, targets[chosen])",
    ),
    Fault(
        "which tokens are masked depends on the width of the padding",
        "text/masking.py",
        "noise[candidates] = rng.random(np.count_nonzero(candidates))",
        "noise[candidates] = rng.random(candidates.shape)[candidates]",
    ),
    Fault(
        "bytes that are no UTF-8 are dropped instead of replaced",
        "text/validate_text.py",
        'return text.decode(errors="replace"), True',
        'return text.decode(errors="ignore"), True',
    ),
    Fault(
        "None passes for an empty text",
        "text/validate_text.py",
        "    if isinstance(text, bytes):\n",
        '    if text is None:\n        return "", False\n    if isinstance(text, bytes):\n',
    ),
    Fault(
        "a literal <pad> in a text becomes the token for padding",
        "text/tokenizers/bpe.py",
        'if roles == ["pad_token"] and',
        "if not roles and",
    ),
    Fault(
        "long windows count as much as short ones in means",
        "text/long_texts.py",
        'weights = np.maximum(self.flat().lengths, 1).astype("float32")',
        'weights = np.ones(len(self.flat().lengths), "float32")',
    ),
    # === Training ===
    Fault(
        "weights of words are at the first tokens of a text instead of at those of its words",
        "tasks/token_classifier.py",
        'token_weights[first_tokens] = join_weights(word_weights, word_counts, "words")[is_in_sequence]',
        'token_weights[: len(first_tokens)] = join_weights(word_weights, word_counts, "words")[is_in_sequence]',
    ),
    Fault(
        "the schedule of a second fit begins where that of the first one did",
        "training/optimizers.py",
        "start = int(ops.convert_to_numpy(self.iterations)) - elapsed",
        "start = 0",
    ),
    Fault(
        "accuracy over tokens counts positions without a label, padding included",
        "training/span_metrics.py",
        "position_weights = ops.cast(y_true != IGNORED, self.dtype)  # (B, T)",
        "position_weights = ops.ones_like(y_true, self.dtype)  # (B, T)",
    ),
    Fault(
        "a resumed run begins with an optimizer that remembers nothing",
        "training/resuming.py",
        "for name, variable in variables.items():\n        variable.assign(tensors.read(name))",
        "for name, variable in variables.items():\n"
        '        if name.startswith("model."):\n'
        "            variable.assign(tensors.read(name))",
    ),
    Fault(
        "sentences that next-sentence prediction replaces by random ones are never trained on",
        "data/corpora/segment_pairing.py",
        "label = 1\n            end = cut  # the replaced sentences come next\n",
        "label = 1\n",
    ),
    Fault(
        "perplexity is a power of 2 where the loss is in nats",
        "training/lm_losses.py",
        "return ops.exp(-self.total / ops.maximum(self.count, 1))",
        "return ops.power(2.0, -self.total / ops.maximum(self.count, 1))",
    ),
    Fault(
        "a high temperature favors large tasks",
        "training/together.py",
        "(batch_counts ** (1 / temperature)).tolist()",
        "(batch_counts**temperature).tolist()",
    ),
    Fault(
        "gradual unfreezing begins with the embeddings",
        "training/unfreezing.py",
        "for index in reversed(range(len(layers)))]",
        "for index in range(len(layers))]",
    ),
    Fault(
        "the lowest layer has the highest learning rate",
        "training/optimizers.py",
        "self.layer_decay ** (self._num_layers - 1 - index) for index",
        "self.layer_decay**index for index",
    ),
    Fault(
        "every mini-batch of a large batch has the same dropout",
        "training/gradient_cache.py",
        "return [scope.get_current_value(v) for v in seeds], result",
        "return seed_values, result",
    ),
    # === Checkpoints ===
    Fault(
        "of equal tokens in a vocabulary the first one counts",
        "checkpoints/tokenizers/wordpiece.py",
        'token if last_ids[token] == id else "" for id, token in enumerate(tokens)',
        'token if tokens.index(token) == id else "" for id, token in enumerate(tokens)',
    ),
    Fault(
        "a prefix that only some names have is left out",
        "checkpoints/formats/tensor_file.py",
        "if all(n.startswith(prefix + w) for n in names)",
        "if any(n.startswith(prefix + w) for n in names)",
    ),
    Fault(
        "tensors of a checkpoint that belong to no weight are left out without a word",
        "checkpoints/engine.py",
        "if reason := _find_reason_to_ignore(layout, canonical_name, head, matched_names):",
        'if reason := _find_reason_to_ignore(layout, canonical_name, head, matched_names) or "no part of the model":',
    ),
    Fault(
        "a kernel that a head has of its own is left out, as if it were another head's",
        "checkpoints/engine.py",
        "if kinds and head not in kinds:",
        "if kinds:",
    ),
    Fault(
        "the weights in one tensor are taken in the model's order, whatever the table says",
        "checkpoints/engine.py",
        "paths.sort(key=lambda path: rows[path].part or 0)",
        "paths.sort(key=lambda path: 0)",
    ),
    Fault(
        "the head for answers is not transposed between files of Google's code and the model",
        "checkpoints/google.py",
        'Row("cls/squad/output_weights", TRANSPOSED)',
        'Row("cls/squad/output_weights")',
    ),
    Fault(
        "query and key are mixed up where fairseq stores them as one tensor",
        "checkpoints/formats/torch.py",
        'for part, third in zip("qkv", tensor.chunk(3), strict=True):',
        'for part, third in zip("kqv", tensor.chunk(3), strict=True):',
    ),
    Fault(
        "the other name of a key in a configuration is not read",
        "checkpoints/config_table.py",
        "resolved_content[key] = content[alias]",
        "resolved_content.pop(alias)",
    ),
    Fault(
        "unknown keys of a configuration are ignored without a word",
        "checkpoints/checkpoint.py",
        "if self.unknown_keys:",
        "if None:",
    ),
    Fault(
        "a stored head that nothing but its tensors tells is replaced by random weights",
        "checkpoints/hugging_face/checkpoint.py",
        "kinds = find_heads(layout, shapes, config)\n",
        "kinds = []\n",
    ),
    Fault(
        "a classifier has as many classes as the configuration says, whatever its tensors hold",
        "checkpoints/hugging_face/checkpoint.py",
        "return count_outputs(layout, kind, shapes) or count_classes(config)",
        "return count_classes(config)",
    ),
    Fault(
        "of two families that a checkpoint may be of, the first is taken",
        "checkpoints/hugging_face/families.py",
        "if len(matches) != 1:",
        "if not matches:",
    ),
    Fault(
        "a class of a family that lmzoo does not have is taken for a user's",
        "checkpoints/hugging_face/families.py",
        "if is_other or (match and is_unknown and (match[3] or is_variant)):",
        "if is_other:",
    ),
    Fault(
        "square kernels of TensorFlow's files are not transposed",
        "checkpoints/hugging_face/tensorflow.py",
        'if _get_variable_kind(first_name) == "kernel"',
        'if len(set(array.shape)) > 1 and _get_variable_kind(first_name) == "kernel"',
    ),
    Fault(
        "copies of a weight in TensorFlow's files may differ",
        "checkpoints/hugging_face/tensorflow.py",
        "for name in other_names:",
        "for name in other_names[:0]:",
    ),
    Fault(
        "of ALBERT's two biases in TensorFlow's files, the one that is never added is read",
        "checkpoints/hugging_face/tensorflow.py",
        '"predictions.decoder.bias": "predictions.bias",',
        "",
    ),
    Fault(
        "an index may list the same tensor twice",
        "checkpoints/formats/sharded.py",
        "if len(shard_by_tensor) < len(weight_map):",
        "if not shard_by_tensor:",
    ),
    # === Presets ===
    Fault(
        "the checksums of a preset's files are not compared with those of its manifest",
        "files/manifest.py",
        "if sha256 is not None and (digest := _compute_sha256(path)) != sha256:",
        "if sha256 is not None and not (digest := _compute_sha256(path)):",
    ),
    Fault(
        "files are written in place, so that a failure destroys what was there",
        "files/atomic.py",
        'temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name}")',
        "temporary = target",
    ),
    Fault(
        "others' entries of a directory are gone while it is replaced",
        "files/atomic.py",
        "foreign_names = _link_foreign(target, temporary, owns)",
        "foreign_names = []",
    ),
    Fault(
        "an archive may write outside of the folder that it is unpacked into",
        "files/archives.py",
        'if path.is_absolute() or ".." in path.parts or set(name)',
        "if path.is_absolute() or set(name)",
    ),
    Fault(
        "a name that is nearly that of a preset gets no suggestion",
        "presets/catalog.py",
        "best_score >= _MIN_SIMILARITY",
        "best_score >= 1",
    ),
    Fault(
        "the preset's recipe for fine-tuning does not decide on the pooling",
        "presets/loading.py",
        "return _Head(_get_recipe_arguments(backbone, cls), warning=",
        "return _Head({}, warning=",
    ),
    Fault(
        "of a preset with a head the backbone alone is loaded",
        "presets/loading.py",
        "source.load(model, head.is_stored)",
        "source.load(model, False)",
    ),
    Fault(
        "a whole file from a server that cannot resume is appended to the part that was there",
        "files/download.py",
        'path.open("ab" if is_partial else "wb")',
        'path.open("ab")',
    ),
    Fault(
        "special tokens that hold spaces are split there",
        "text/tokenizers/rust_tokenizer.py",
        "self._can_cache = not any(map(self._crosses_words, tokens))",
        "self._can_cache = True",
    ),
    Fault(
        "two spaces between words are those of two words",
        "text/tokenizers/bpe.py",
        'text.split(" ") == text.split()',
        "text.split()",
    ),
    Fault(
        "an answer on a kept connection waits for an acknowledgement",
        "serving/server.py",
        "socket.TCP_NODELAY, 1)",
        "socket.TCP_NODELAY, 0)",
    ),
    # === Tasks ===
    Fault(
        "predictions come in the order of the texts' lengths",
        "tasks/base/prediction.py",
        "reordered_output[example_order] = output",
        "reordered_output[:] = output[: len(reordered_output)]",
    ),
    Fault(
        "a label one above the last class passes",
        "tasks/base/labels.py",
        "refuse_first((classes < 0) | (classes >= num_classes), ",
        "refuse_first((classes < 0) | (classes > num_classes), ",
    ),
    Fault(
        "weights of classes are ignored",
        "tasks/base/task.py",
        "replace(options, class_weight=batch_class_weight)",
        "replace(options, class_weight=None)",
    ),
    Fault(
        "weights of texts are ignored in learning to fill masks",
        "tasks/masked_lm.py",
        "weights *= examples.weights[indices][:, None]",
        "pass",
    ),
    Fault(
        "the scores of several labels are a softmax instead of sigmoids",
        "tasks/text_classifier.py",
        "scores = sigmoid(logits) if self.multi_label else softmax(logits)",
        "scores = softmax(logits)",
    ),
    Fault(
        "regression minimizes absolute instead of squared errors",
        "tasks/text_regressor.py",
        "return keras.losses.MeanSquaredError()",
        "return keras.losses.MeanAbsoluteError()",
    ),
    Fault(
        "embeddings are divided by their lengths though that was not asked for",
        "tasks/text_embedder.py",
        'outputs = unit_vectors(vectors) if normalize else ops.cast(vectors, "float32")',
        "outputs = unit_vectors(vectors)",
    ),
    Fault(
        "the weights of a weighted mean begin at 0",
        "layers/pooling.py",
        "weights = ops.expand_dims(ops.cumsum(is_real, axis=1) * is_real, -1)",
        "weights = ops.expand_dims((ops.cumsum(is_real, axis=1) - 1) * is_real, -1)",
    ),
    Fault(
        "the default prompt is not put before texts that are exported",
        "text/graphs/preprocessor.py",
        "tf.strings.join([prompt, texts]) if prompt else texts",
        "texts",
    ),
    Fault(
        "the default prompt is not put before pairs in training",
        "tasks/text_embedder.py",
        "first_column = self._encode_with_prompt(firsts, first_prompt)",
        'first_column = self._encode_with_prompt(firsts, "")',
    ),
    Fault(
        "both sides of pairs have the prompt of first texts",
        "tasks/text_embedder.py",
        "for text in column], other_prompt)",
        "for text in column], first_prompt)",
    ),
    Fault(
        "hard negatives are no candidates for first texts",
        "training/contrastive.py",
        "ops.where(is_excluded & ~is_partner, -1e9, scores)",
        "ops.where((is_excluded & ~is_partner) | (ops.arange(num_candidates) >= num_groups), -1e9, scores)",
    ),
    Fault(
        "CoSENT compares pairs with equal labels",
        "training/embedding_losses.py",
        "labels[:, None] < labels",
        "labels[:, None] <= labels",
    ),
    Fault(
        "gradient caching forgets the seeds that its mini-batches drew",
        "training/gradient_cache.py",
        "        seed.assign(value)\n",
        "        seed.assign(seed)\n",
    ),
    Fault(
        "a module of Sentence Transformers may lie outside of its folder",
        "checkpoints/sentence_transformers/modules.py",
        'or ".." in parts',
        "",
    ),
    Fault(
        "a module of Sentence Transformers may be a link out of its folder",
        "checkpoints/sentence_transformers/modules.py",
        "check_inside(directory, directory / path)",
        "",
    ),
    Fault(
        "the length of Sentence Transformers is ignored",
        "checkpoints/checkpoint.py",
        "if limit is None else min(limit, max_positions)",
        "if True else min(limit, max_positions)",
    ),
    Fault(
        "`do_lower_case` of Sentence Transformers is ignored",
        "checkpoints/sentence_transformers/checkpoint.py",
        "if self.do_lower_case else base.tokenizer",
        "if False else base.tokenizer",
    ),
    Fault(
        "a dense layer of Sentence Transformers without an activation in its file has none",
        "checkpoints/sentence_transformers/modules.py",
        '"activation_function": "torch.nn.modules.activation.Tanh"}',
        '"activation_function": "torch.nn.modules.linear.Identity"}',
    ),
    Fault(
        "a dense layer far larger than its file is built",
        "checkpoints/sentence_transformers/checkpoint.py",
        'tensors.shape(name)[:1] != (layer["units"],)',
        "False",
    ),
    Fault(
        "the activation of a cross-encoder is not written",
        "checkpoints/checkpoint_writer.py",
        'config["sentence_transformers"] = {"activation_fn": write_activation(model.output_activation)}',
        "pass",
    ),
    Fault(
        "poolings in an unusual order are written in the usual one",
        "checkpoints/sentence_transformers/writer.py",
        "if modes != [mode for mode in POOLING_MODES if mode in modes]:",
        "if False:",
    ),
    Fault(
        "the preprocessor's length in KerasHub's presets of tasks is ignored",
        "checkpoints/keras_hub/checkpoint.py",
        "read_preprocessor_length(directory, reader) if head else None",
        "None",
    ),
    Fault(
        "pickled weights of a module are not downloaded",
        "presets/hubs.py",
        "if module.has_weights]",
        "if module.has_weights][:1]",
    ),
    Fault(
        "the threshold for no answer is always zero",
        "text/answer_ranking.py",
        "null_index = sum(null - answer.score <= threshold for answer in answers)",
        "null_index = sum(null - answer.score <= 0 for answer in answers)",
    ),
    Fault(
        "answers are ranked from the worst one on",
        "text/answer_ranking.py",
        "order = np.lexsort((-answer_scores, answer_examples))",
        "order = np.lexsort((answer_scores, answer_examples))",
    ),
    # === Serving ===
    Fault(
        "an exported model takes answers from windows that cut off their context",
        "text/graphs/answer_ranking.py",
        "is_valid_start = has_most_context & (window_positions >= 0) & (window_positions < num_tokens)  # (w, t)",
        "is_valid_start = (window_positions >= 0) & (window_positions < num_tokens)  # (w, t)",
    ),
    Fault(
        "a server is not warmed up for texts that fill a row",
        "serving/warmup.py",
        "for texts in ([short_text], [long_text], [short_text, long_text, short_text, short_text]):",
        "for texts in ([short_text], [short_text], [short_text, short_text, short_text, short_text]):",
    ),
    Fault(
        "requests by rows are answered by columns, and those by columns by rows",
        "serving/model_versions.py",
        "if not by_row:",
        "if by_row:",
    ),
    Fault(
        "a server believes what the header says about the size of a body",
        "serving/rest_api.py",
        "if len(body) + len(chunk) > max_bytes:",
        "if False:",
    ),
    Fault(
        "3CosMul does not divide by the similarity to the first word",
        "static_vectors/static_embedder.py",
        "return b * c / (a + np.float32(_EPSILON))",
        "return b * c",
    ),
    Fault(
        "vectors in int8 stand for the lower ends of their steps",
        "search/quantized.py",
        "return self.ranges[0] + middle + (",
        "return self.ranges[0] + (",
    ),
    Fault(
        "words with the fewest equal bits are nearest",
        "search/quantized.py",
        "candidates = np.flatnonzero(differences <= threshold)",
        "candidates = np.flatnonzero(differences >= threshold)[:top_k]",
    ),
    # === Readers ===
    Fault(
        "the columns of a pair are mixed up",
        "data/readers/tables.py",
        "x = texts if pair is None else (texts, table.texts(pair))",
        "x = texts if pair is None else (table.texts(pair), texts)",
    ),
    Fault(
        "blank lines of CoNLL's files end no sentence",
        "data/readers/conll.py",
        "            in_sentence = False\n        elif",
        "            pass\n        elif",
    ),
    Fault(
        "a damaged file of a corpus is read as other text",
        "data/corpora/token_corpus.py",
        "if expected_checksums != actual_checksums:",
        "if len(expected_checksums) != len(actual_checksums):",
    ),
    Fault(
        "a role of one word goes on to the next",
        "data/readers/semantic_roles.py",
        "        if match[2]:",
        "        if match[2] and not opened_role:",
    ),
    # === Pretraining, compatibility, command line ===
    Fault(
        "a model is evaluated on the documents that it was pre-trained on",
        "pretraining/training_texts.py",
        "held_out.append(TrainingDocuments(text, count, is_held_out=True))",
        "held_out.append(TrainingDocuments(text, count))",
    ),
    Fault(
        "AllenNLP's Elmo trains the language model though it is told not to",
        "compat/allennlp.py",
        "self.backbone.trainable = requires_grad",
        "self.backbone.trainable = True",
    ),
    Fault(
        "a command that failed ends with exit code 0",
        "lmzoo_cli/messages.py",
        "raise typer.Exit(1) from None",
        "raise typer.Exit(0) from None",
    ),
    Fault(
        "precision and recall of classes are mixed up in reports",
        "evaluation/reports.py",
        "by_class = metrics.precision_recall_fscore_support(actual, predicted, labels=names",
        "by_class = metrics.precision_recall_fscore_support(predicted, actual, labels=names",
    ),
    # === What files bring back ===
    Fault(
        "a loaded .keras file has an optimizer without its state",
        "training/compiled_functions.py",
        'built = isinstance(optimizer, dict) and optimizer.get("built", False)',
        "built = False",
    ),
    Fault(
        "the weights of a head are not read from a preset",
        "presets/keras_preset.py",
        "\n            weight.assign(file.read(name))",
        "\n            file.read(name)",
    ),
    Fault(
        "the learning rate does not fall after the warm-up",
        "training/optimizers.py",
        "total_steps > 0, _DECAY_FACTORS[self.schedule](remaining_fraction, warmup_ratio), 1.0",
        "total_steps > 0, ops.ones_like(remaining_fraction), 1.0",
    ),
    Fault(
        "weight decay reaches biases and LayerNorms, too",
        "training/optimizers.py",
        "not any(substring in v.path for substring in self.exclude_from_decay)",
        "not any(substring == v.path for substring in self.exclude_from_decay)",
    ),
    Fault(
        "an added token of single words is found inside of others in graphs",
        "text/graphs/added_tokens.py",
        "is_valid = ~(touches_word & tf.gather(self._single, token_indices))",
        "is_valid = tf.ones_like(touches_word)",
    ),
    Fault(
        "a special token with the letter of a byte has two bytes in graphs",
        "text/tokenizers/bpe.py",
        "*self._tokens[self._base_size :]} - pieces",
        "*self._tokens[self._base_size :]}",
    ),
    Fault(
        "a symbol that was added to a SentencePiece model is lost in files",
        "checkpoints/tokenizers/config.py",
        "if mentioned_symbols.keys() != symbols:",
        "if mentioned_symbols.keys() < symbols and not symbols:",
    ),
    Fault(
        "embeddings of new tokens are zeros",
        "families/resizing.py",
        "np.concatenate([values[: shape[axis]], new_rows])",
        "np.concatenate([values[: shape[axis]], 0 * new_rows])",
    ),
    Fault(
        "of a file of low-rank updates only the first of each layer is loaded",
        "families/lora.py",
        "            for update in get_updates(layers[layer_path]):",
        "            for update in get_updates(layers[layer_path])[:1]:",
    ),
    Fault(
        "published models of XLM-RoBERTa's tokenizer get no padding token",
        "text/tokenizers/xlmr_sentencepiece.py",
        'for token in ("<s>", "<pad>", "</s>", "<unk>"):',
        'for token in ("<s>", "</s>", "<unk>"):',
    ),
    Fault(
        "the files of a tokenizer do not tell families of one format apart",
        "checkpoints/checkpoint.py",
        "families.sort(key=lambda family: not holds_tokenizer(directory, family.tokenizer))",
        "families.sort(key=lambda family: False)",
    ),
    Fault(
        "Chinese characters are words whatever a tokenizer's setting says",
        "text/tokenizers/wordpiece.py",
        "handle_chinese_chars=self.split_on_cjk,",
        "handle_chinese_chars=True,",
    ),
    Fault(
        "prompts get no start token, also if it is asked for",
        "tasks/causal_lm.py",
        "if preprocessor.packing.start or not self.add_start_token:",
        "if True:",
    ),
    Fault(
        "the projection of ELECTRA's embeddings has other weights than the file's",
        "families/transformer.py",
        'return layers["embedding_projection"](x) if "embedding_projection" in layers else x',
        'return 2 * layers["embedding_projection"](x) if "embedding_projection" in layers else x',
    ),
    Fault(
        "the most probable token takes the place of a drawn one",
        "tasks/objectives/replaced_tokens.py",
        "return ops.where(draws < 0, ops",
        "return ops.where(draws < 2, ops",
    ),
    Fault(
        "a padded slot replaces the first token",
        "tasks/objectives/replaced_tokens.py",
        "is_target = is_target & (positions[..., None] > 0)",
        "is_target = is_target & (positions[..., None] >= 0)",
    ),
    Fault(
        "padding counts among the tokens that a discriminator judges",
        "tasks/pretrainer.py",
        'original_features["padding_mask"].astype("float32") * sequence_weights[:, None]',
        'np.ones_like(original_features["padding_mask"], "float32") * sequence_weights[:, None]',
    ),
    Fault(
        "a head of transformers has the activation of the configuration",
        "checkpoints/hugging_face/checkpoint.py",
        "if kind in PREDICTING_TOKENS and layout.head_activation is not None:",
        "if False:",
    ),
    Fault(
        "the last norm of a pre-norm model decays",
        "training/optimizers.py",
        '("bias", "_norm")',
        '("bias", "layer_norm")',
    ),
    Fault(
        "the bias of masked tokens is rounded on one backend",
        "layers/heads.py",
        'initializer="zeros", autocast=False, name="output_bias"',
        'initializer="zeros", name="output_bias"',
    ),
    Fault(
        "in training, a short last window counts as much as a full one",
        "tasks/long_texts.py",
        "shares = lengths / ops.sum(lengths, axis=1, keepdims=True)",
        'shares = ops.ones_like(lengths) / ops.sum(ops.cast(lengths > 0, "float32"), axis=1, keepdims=True)',
    ),
    Fault(
        "missing windows count in the maximum over windows",
        "tasks/long_texts.py",
        "ops.where(ops.expand_dims(lengths > 0, 2), outputs, ABSENT)",
        "outputs",
    ),
    Fault(
        "only the first window of a text begins with the prompt",
        "text/long_texts.py",
        "firsts.append(first[i][: prompt_lengths[i]] + first[i][begin : begin + count])",
        "firsts.append(first[i][begin - (begin == prompt_lengths[i]) * prompt_lengths[i] : begin + count])",
    ),
    Fault(
        "exported windows have no prompt of their own",
        "text/graphs/long_texts.py",
        "prompt_lengths = tf.where(splits_first, self._count_prompt_tokens(first, prompt), 0)",
        "prompt_lengths = tf.zeros_like(first_lengths)",
    ),
    Fault(
        "a word's label comes from the first window that holds it",
        "text/windows.py",
        "order = np.lexsort((window_indices, -scores, token_indices, examples[window_indices]))",
        "order = np.lexsort((window_indices, token_indices, examples[window_indices]))",
    ),
)
