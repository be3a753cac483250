#!/usr/bin/env bash
# A job on machines of Azure, written by: torshctl render azure -f cluster.yaml
#
#   bash digits-azure.sh up        # start what is not there yet
#   bash digits-azure.sh status    # list the machines
#   bash digits-azure.sh down      # remove all of it; until then it costs money
#
# It needs az. Change what you like.
set -euo pipefail

name=torshrun-digits
nodes=2
location='westeurope'

# All of it is in a resource group of its own, which is removed as a whole.
# machine NODE: its id, if it is there.
machine() { az vm list --resource-group "$name" --query "[?name=='$name-$1'].id" -o tsv; }

list() { az vm list --resource-group "$name" --show-details --output table; }

# Sets has_group to true or false; ends with an error if the resource group is not this job's.
find_group() {
  local tag
  has_group=$(az group exists --name "$name")
  if [ "$has_group" = false ]; then return; fi
  tag=$(az group show --name "$name" --query tags.torshrun -o tsv)
  if [ "$tag" != "$name" ]; then
    echo "the resource group $name is not this job's: it has no tag torshrun=$name" >&2
    exit 1
  fi
}

make_surroundings() {
  find_group
  if [ "$has_group" = false ]; then
    az group create --name "$name" --location "$location" --tags "torshrun=$name" --output none
  fi
  # These change nothing where it is as they say.
  # Machines close to each other.
  az ppg create --resource-group "$name" --name "$name" --type Standard --output none
  # Nodes reach each other on all ports from 1024 on, and nobody reaches them from the internet.
  az network asg create --resource-group "$name" --name "$name" --output none
  az network nsg create --resource-group "$name" --name "$name" --output none
  az network nsg rule create --resource-group "$name" --nsg-name "$name" --name nodes \
    --priority 100 --protocol Tcp --destination-port-ranges 1024-65535 \
    --source-asgs "$name" --destination-asgs "$name" --output none
}

# launch NODE FILE
launch() {
  local options=(
    --resource-group "$name" --name "$name-$1" --image my-image
    --size Standard_F8s_v2 --ppg "$name" --nsg "$name" --asgs "$name" --custom-data "$2"
    --vnet-name "$name" --subnet nodes --public-ip-sku Standard
    --admin-username torsh
    --generate-ssh-keys
  )
  az vm create "${options[@]}" --query id -o tsv
}

address_of_first() {
  az vm show --resource-group "$name" --name "$name-0" --show-details --query privateIps -o tsv
}

remove() {
  find_group
  if [ "$has_group" = true ]; then az group delete --name "$name" --yes; fi
}

# What the nodes prove to each other that they know. Whoever may read the machines' metadata reads it.
secret_file=${XDG_STATE_HOME:-$HOME/.local/state}/torshrun/azure-$name.secret
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
