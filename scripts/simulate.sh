#!/bin/sh
# Runs the simulation: whole client and server, virtual time, planted faults.
#   scripts/simulate.sh --seeds 200            so many seeds
#   scripts/simulate.sh --seed 17 --trace      one of them again, with every step
#   scripts/simulate.sh --hard --seeds 200     all of them on devices that forgive little
#   scripts/simulate.sh --planted              finds each planted defect
set -eu
cd "$(dirname "$0")/.."
features=
for argument in "$@"; do
    [ "$argument" = --planted ] && features="--features planted"
done
# shellcheck disable=SC2086 # no feature is no argument
exec cargo run --quiet --profile simulation -p dafs-simulation $features --bin simulate -- "$@"
