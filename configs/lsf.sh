#!/usr/bin/env bash
# LSF job, written by: torshctl render lsf -f cluster.yaml
# Submit it with: bsub < digits.lsf
#
# Change what you like. Lines that begin with #BSUB are options of bsub; the same option on bsub's
# command line wins, as in: bsub -W 8:00 < …
#BSUB -J digits
# A slot is a processor: so many on each of 2 nodes.
#BSUB -n 4
#BSUB -R "span[ptile=2]"
#BSUB -R "rusage[mem=4096MB/host]"
#BSUB -W 1:00
# So many minutes before the end torshrun is told, and tells the workers.
#BSUB -wt 2
#BSUB -wa USR1
# After a node's failure, and when the job had to make room (75), it waits in the queue again.
#BSUB -r
#BSUB -Q "75"
# %I is the task's number in a job array (-J "name[1-5]"), else 0.
#BSUB -o %J.%I.out
set -eo pipefail

export OMP_NUM_THREADS=1
# One torshrun per node, which starts the node's workers. It finds the others in what LSF sets, and
# its rank by the order of this list.
hosts=$(awk '!seen[$0]++' "${LSB_DJOB_HOSTFILE:?this is no LSF job}" | tr '\n' ' ')
exec blaunch -z "${hosts% }" \
  torshrun \
  --nproc-per-node=2 \
  --max-restarts=3 \
  examples/train.py --epochs 20
