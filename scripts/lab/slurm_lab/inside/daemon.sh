#!/bin/bash
# Runs one of SLURM's daemons in a host of the NFS lab: daemon.sh FOLDER_OF_THE_CONFIGURATION COMMAND…
# Its own files are in the host's memory, as on a node without disks.
set -e
mkdir -p /run/slurm/spool
# slurmd wants a place for control groups, though this cluster uses none.
mountpoint -q /sys/fs/cgroup || mount -t tmpfs tmpfs /sys/fs/cgroup
install -m 400 "$1/munge.key" /run/slurm/munge.key
munged --force --socket=/run/slurm/munge.socket --key-file=/run/slurm/munge.key \
  --pid-file=/run/slurm/munged.pid --log-file=/mnt/lab/munged.log --seed-file=/run/slurm/munged.seed
shift
exec "$@"
