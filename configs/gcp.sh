#!/usr/bin/env bash
# A job on machines of Google Compute Engine, written by: torshctl render gcp -f cluster.yaml
#
#   bash digits-gcp.sh up        # start what is not there yet
#   bash digits-gcp.sh status    # list the machines
#   bash digits-gcp.sh down      # remove all of it; until then it costs money
#
# It needs gcloud. Change what you like.
set -euo pipefail

name=torshrun-digits
nodes=2
project='my-project'
zone='europe-west3-a'
network='default'

compute() { gcloud --project "$project" --quiet compute "$@"; }

# machine NODE: its name, if it is there.
machine() { compute instances list --filter="name=$name-$1" --format='value(name)'; }

list() {
  compute instances list --filter="tags.items=$name" \
    --format='table(name,status,networkInterfaces[0].networkIP)'
}

firewall_rule() { compute firewall-rules list --filter="name=$name" --format='value(name)'; }

placement_policy() { compute resource-policies list --filter="name=$name" --format='value(name)'; }

make_surroundings() {
  local policy rule
  # Machines close to each other.
  policy=$(placement_policy)
  if [ -z "$policy" ]; then
    compute resource-policies create group-placement "$name" --region "${zone%-*}" \
      --collocation COLLOCATED
  fi
  # Nodes reach each other on all ports from 1024 on. (The network's other rules hold besides.)
  rule=$(firewall_rule)
  if [ -z "$rule" ]; then
    compute firewall-rules create "$name" --network "$network" --allow tcp:1024-65535 \
      --source-tags "$name" --target-tags "$name"
  fi
}

# launch NODE FILE
launch() {
  local options=(
    --zone "$zone" --machine-type c3-standard-8 --network "$network" --tags "$name"
    --image-family my-image --image-project my-project
    --resource-policies "$name" --metadata-from-file "startup-script=$2"
    --maintenance-policy TERMINATE --no-restart-on-failure --no-service-account --no-scopes
  )
  compute instances create "$name-$1" "${options[@]}"
}

address_of_first() {
  compute instances describe "$name-0" --zone "$zone" \
    --format='value(networkInterfaces[0].networkIP)'
}

remove() {
  local all names policy rule
  all=$(compute instances list --filter="tags.items=$name" --format='value(name)')
  read -r -a names <<< "${all//$'\n'/ }"
  if [ "${#names[@]}" -gt 0 ]; then compute instances delete "${names[@]}" --zone "$zone"; fi
  rule=$(firewall_rule)
  if [ -n "$rule" ]; then compute firewall-rules delete "$name"; fi
  policy=$(placement_policy)
  if [ -n "$policy" ]; then compute resource-policies delete "$name" --region "${zone%-*}"; fi
}

# What the nodes prove to each other that they know. Whoever may read the machines' metadata reads it.
secret_file=${XDG_STATE_HOME:-$HOME/.local/state}/torshrun/gcp-$name.secret
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

make_secret() {
  [ -s "$secret_file" ] && return
  mkdir -p "$(dirname "$secret_file")"
  (umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' > "$secret_file")
}

# startup ADDRESS: what a machine runs; the address is the first one's, "" on itself.
startup() {
  printf '#!/usr/bin/env bash\nfirst=%q\nsecret=%q\n' "$1" "$(cat "$secret_file")"
  cat <<'END_'
# Runs as root when the machine starts. Its output: journalctl -u cloud-final (on Google Cloud
# -u google-startup-scripts), torshrun's and the workers': journalctl -u torshrun
set -eo pipefail
export HOME=/root
# The machine does not outlive the job's time; torshrun and the workers are asked to stop then.
shutdown -h +60

# As the job file has it under setup.
export PATH=/opt/torshrun/bin:$PATH

id torshrun > /dev/null 2>&1 || useradd --create-home torshrun

# The command that runs as that user.
install -m 755 /dev/stdin /usr/local/bin/torshrun-job <<'END'
#!/usr/bin/env bash
export OMP_NUM_THREADS=1
export TORSH_RUN_ID=digits
export TORSH_NNODES=2
export TORSH_SHUTDOWN_TIMEOUT=120
export TORSH_NPROC_PER_NODE=2
export TORSH_RDZV_BACKEND=tcp
exec torshrun \
  --max-restarts=3 \
  examples/train.py --epochs 20
END

# Where the nodes meet: at the first one. Only root and torshrun can read the secret.
first=${first:-$(hostname -I | cut -d' ' -f1)}
(
  umask 077
  printf 'TORSH_SECRET=%s\nTORSH_RDZV_ENDPOINT=%s\n' "$secret" "$first:29400" > /etc/torshrun.env
)

# On shutdown, and so when a spot machine is taken back, systemd asks torshrun to stop and waits.
exec systemd-run --unit=torshrun --uid=torshrun --gid=torshrun --working-directory=/home/torshrun \
  --property=EnvironmentFile=/etc/torshrun.env --property=KillMode=mixed \
  --property=TimeoutStopSec=135 --setenv=PATH="$PATH" \
  /usr/local/bin/torshrun-job
END_
}

up() {
  make_secret
  make_surroundings
  local first="" node there
  for ((node = 0; node < nodes; node++)); do
    there=$(machine "$node")
    if [ -n "$there" ]; then
      echo "$name-$node is there"
    else
      startup "$first" > "$scratch/startup"
      launch "$node" "$scratch/startup"
    fi
    if [ "$node" -eq 0 ]; then first=$(address_of_first); fi
  done
  echo "The job starts once the machines have. '$0 status' lists them, '$0 down' ends it all."
}

case "${1:-}" in
  up) up ;;
  status) list ;;
  down)
    remove
    rm -f "$secret_file"
    echo "Nothing of $name is left that costs anything."
    ;;
  *)
    echo "usage: $0 up|status|down" >&2
    exit 2
    ;;
esac
