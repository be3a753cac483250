#!/usr/bin/env bash
# One node under PBS: qsub -v SCRIPT=examples/train.py configs/pbs.sh
#PBS -N torshrun
#PBS -l select=1:ncpus=4
# PBS sends SIGTERM some seconds before SIGKILL (kill_delay, 10 s by default).
set -euo pipefail

cd "${PBS_O_WORKDIR:?not inside a PBS job}"
exec torshrun \
  --nproc-per-node "${NCPUS:?not inside a PBS job}" \
  --run-id "pbs-${PBS_JOBID:?not inside a PBS job}" \
  --shutdown-timeout 8 \
  --max-restarts 3 \
  "${SCRIPT:?name the script: qsub -v SCRIPT=train.py}"
