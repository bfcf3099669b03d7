#!/usr/bin/env bash
# Prints the address by which the other nodes of a Slurm job reach this one.
set -euo pipefail

name=$(scontrol show node "$SLURMD_NODENAME" | grep --only-matching --perl-regexp '(?<=NodeAddr=)\S+')
getent ahostsv4 "$name" | awk 'NR == 1 { print $1 }'
