#!/bin/bash
# One `lmzoo fit` or `lmzoo pretrain` on several hosts of a Slurm cluster, on JAX, a process for each GPU:
#
#     sbatch slurm.sh fit reviews.csv --task classifier --preset bert_base_en_uncased \
#         --output reviews.keras --checkpoint states
#
# All hosts need the same files under the same paths, lmzoo among them. A job that is requeued after a host has failed
# goes on from the last state in the folder of --checkpoint.

#SBATCH --job-name=lmzoo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --signal=TERM@120
#SBATCH --requeue

export KERAS_BACKEND=jax
# So many processes train one model. Where they meet and which one each of them is, JAX learns from Slurm's variables.
export KERAS_DISTRIBUTION_NUM_PROCESSES=$SLURM_NTASKS

exec srun --kill-on-bad-exit=1 lmzoo "$@"
