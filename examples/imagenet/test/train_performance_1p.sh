#!/bin/bash
# Training performance of one process: runs main.py, keeps its log, prints the final figures.
#
#   bash train_performance_1p.sh --data_path=/data/imagenet/ [--batch_size=64 --steps=100 ...]
#
# Exits with the status of main.py.

usage() {
  cat <<END
usage: bash train_performance_1p.sh [--data_path=FOLDER] [--OPTION=VALUE ...]

  --data_path=FOLDER   class folders of JPEGs (without it: generated images)
  --output=FOLDER      where the log goes (default: output/ beside this script)
  --batch_size= --steps= --epochs= --arch= --workers= --lr= --momentum= --image_size=
  --print_freq= --seed= --threads= --device= --amp= --profile= --save=
                       the options of main.py; python3 main.py --help explains them

The interpreter is python3, or \$PYTHON.
END
}

fail() {
  echo "train_performance_1p.sh: $1" >&2
  exit 2
}

example_folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
output_folder="$example_folder/test/output"
data_path=""
options=()
for argument in "$@"; do
  value="${argument#*=}"
  case "$argument" in
    --help | -h)
      usage
      exit 0
      ;;
    --data_path=*) data_path="$value" ;;
    --output=*) output_folder="$value" ;;
    --batch_size=* | --steps=* | --epochs=* | --arch=* | --workers=* | --lr=* | --momentum=* | \
      --image_size=* | --print_freq=* | --seed=* | --threads=* | --device=* | --amp=* | \
      --profile=* | --save=*)
      name="${argument%%=*}"
      options+=("${name//_/-}=$value")
      ;;
    *) fail "unknown argument '$argument'; expected --key=value, see --help" ;;
  esac
done
[[ -n "$data_path" ]] || echo "No --data_path given: training on generated images."

mkdir -p "$output_folder" || fail "cannot make the folder $output_folder"
log="$output_folder/train_performance_1p.log"
: >"$log" || fail "cannot write $log"

# The training runs beside this shell, so that a SIGTERM to the shell alone can be passed on to it.
# Ctrl-C reaches both; without env the training would ignore it, as a background job does.
start=$SECONDS
exec 3> >(exec tee -i -a "$log")
tee_process=$!
env --default-signal=INT "${PYTHON:-python3}" "$example_folder/main.py" \
  ${data_path:+"$data_path"} "${options[@]}" >&3 2>&1 3>&- &
training=$!
exec 3>&-
trap 'kill -TERM "$training" 2>/dev/null' TERM
trap ':' INT
while true; do
  wait "$training"
  status=$?
  kill -0 "$training" 2>/dev/null || break # a signal only interrupted the wait
done
wait "$tee_process"
duration=$((SECONDS - start))

if ((status != 0)); then
  echo "train_performance_1p.sh: main.py ended with status $status; its log is $log" >&2
  exit "$status"
fi
images_per_second="$(awk '$1 == "images/s" { value = $2 } END { print value }' "$log")"
{
  echo "------------------ Final result ------------------"
  echo "Final Performance images/sec : $images_per_second"
  echo "E2E Training Duration sec : $duration"
} | tee -a "$log"
