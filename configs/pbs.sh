#!/usr/bin/env bash
# PBS job (OpenPBS, PBS Professional), written by: torshctl render pbs -f cluster.yaml
# Submit it with: qsub digits.pbs
#
# Change what you like. Lines that begin with #PBS are options of qsub, which end at the first
# command; the same option on qsub's command line wins, as in: qsub -l walltime=8:00:00 …
#PBS -N digits
# One process per node: torshrun, which starts the node's workers.
#PBS -l select=2:ncpus=2:mpiprocs=1:mem=4096mb
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -j oe
set -eo pipefail
cd "$PBS_O_WORKDIR"

# What runs on each node. pbsdsh starts it in another directory and with few variables, so all that
# it needs is said in here.
on_each_node() {
cd "$PBS_O_WORKDIR" || return
export OMP_NUM_THREADS=1
exec torshrun \
  --nproc-per-node=2 \
  --shutdown-timeout=120 \
  --max-restarts=3 \
  examples/train.py --epochs 20
}

# torshrun finds the others by PBS's list of nodes, which only this one has as a file. The job's
# directory, which all nodes see, has a copy while the job runs.
nodes=$PWD/.${PBS_JOBID:?this is no PBS job}.nodes
trap 'rm -f "$nodes"' EXIT
cp "$PBS_NODEFILE" "$nodes"
variables=(PBS_JOBID="$PBS_JOBID" PBS_O_WORKDIR="$PBS_O_WORKDIR" PBS_NODEFILE="$nodes")
# Of a job array (qsub -J 0-4): which of its tasks this is.
[ -z "$PBS_ARRAY_INDEX" ] || variables+=(PBS_ARRAY_INDEX="$PBS_ARRAY_INDEX")

# PBS leaves torshrun only kill_delay (10 s by default) at the end of its time: so it is told to stop
# 120 s before, by a SIGTERM that pbsdsh passes on.
timeout --signal=TERM 3480 \
pbsdsh -- env "${variables[@]}" bash -lc "$(declare -f on_each_node); on_each_node"
