"""Token-level training objectives: masked tokens, permutation language modeling and replaced token detection."""
