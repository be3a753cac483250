#!/usr/bin/env bash
# A job on machines of Amazon EC2, written by: torshctl render aws -f cluster.yaml
#
#   bash digits-aws.sh up        # start what is not there yet
#   bash digits-aws.sh status    # list the machines
#   bash digits-aws.sh down      # remove all of it; until then it costs money
#
# It needs aws (1 or 2). Change what you like.
set -euo pipefail

name=torshrun-digits
nodes=2
region='eu-central-1'
instance_type='c7i.2xlarge'
image='ami-0123456789abcdef0'
subnet='subnet-0123456789abcdef0'

ec2() { aws --region "$region" ec2 "$@"; }

# instances STATES [NODE]: the ids of this job's.
instances() {
  ec2 describe-instances --output text --query 'Reservations[].Instances[].InstanceId' --filters \
    "Name=tag:torshrun,Values=$name" "Name=instance-state-name,Values=$1" \
    "Name=tag:Name,Values=$name-${2:-*}"
}

# machine NODE: its id, if it is there.
machine() { instances pending,running "$1"; }

list() {
  # shellcheck disable=SC2016 # the quotes of JMESPath
  ec2 describe-instances --output table --filters "Name=tag:torshrun,Values=$name" --query \
    'Reservations[].Instances[].[Tags[?Key==`Name`]|[0].Value,State.Name,PrivateIpAddress,InstanceId]'
}

security_group() {
  ec2 describe-security-groups --output text --query 'SecurityGroups[].GroupId' \
    --filters "Name=group-name,Values=$name" "Name=tag:torshrun,Values=$name"
}

placement_group() {
  ec2 describe-placement-groups --output text --query 'PlacementGroups[].GroupName' \
    --filters "Name=group-name,Values=$name"
}

tags() { echo "ResourceType=$1,Tags=[{Key=torshrun,Value=$name},{Key=Name,Value=$2}]"; }

make_surroundings() {
  local group placement rule vpc
  # Machines close to each other.
  placement=$(placement_group)
  if [ -z "$placement" ]; then
    ec2 create-placement-group --group-name "$name" --strategy cluster \
      --tag-specifications "$(tags placement-group "$name")" > /dev/null
    echo "made the placement group $name"
  fi
  group=$(security_group)
  if [ -z "$group" ]; then
    vpc=$(ec2 describe-subnets --subnet-ids "$subnet" --query 'Subnets[0].VpcId' --output text)
    group=$(ec2 create-security-group --group-name "$name" --vpc-id "$vpc" \
      --description "Nodes of $name reach each other" \
      --tag-specifications "$(tags security-group "$name")" --query GroupId --output text)
    echo "made the security group $name ($group)"
  fi
  # Nodes reach each other on all ports from 1024 on, and nobody else reaches them.
  rule=$(ec2 describe-security-groups --group-ids "$group" --output text \
    --query 'SecurityGroups[].IpPermissions[].FromPort')
  if [ -z "$rule" ]; then
    ec2 authorize-security-group-ingress --group-id "$group" --ip-permissions \
      "IpProtocol=tcp,FromPort=1024,ToPort=65535,UserIdGroupPairs=[{GroupId=$group}]" > /dev/null
  fi
}

# launch NODE FILE
launch() {
  local group options
  group=$(security_group)
  options=(
    --image-id "$image" --instance-type "$instance_type" --subnet-id "$subnet"
    --security-group-ids "$group" --placement "GroupName=$name"
    --user-data "file://$2" --instance-initiated-shutdown-behavior terminate
    --metadata-options HttpTokens=required --count 1
    --tag-specifications "$(tags instance "$name-$1")"
  )
  ec2 run-instances "${options[@]}" --query 'Instances[0].InstanceId' --output text
}

address_of_first() {
  ec2 describe-instances --output text \
    --query 'Reservations[].Instances[].PrivateIpAddress' --filters \
    "Name=tag:Name,Values=$name-0" "Name=instance-state-name,Values=pending,running"
}

remove() {
  local all group ids placement
  all=$(instances pending,running,stopping,stopped)
  read -r -a ids <<< "${all//[$'\n\t']/ }"
  if [ "${#ids[@]}" -gt 0 ]; then
    ec2 terminate-instances --instance-ids "${ids[@]}" > /dev/null
    ec2 wait instance-terminated --instance-ids "${ids[@]}"
  fi
  group=$(security_group)
  if [ -n "$group" ]; then ec2 delete-security-group --group-id "$group" > /dev/null; fi
  placement=$(placement_group)
  if [ -n "$placement" ]; then ec2 delete-placement-group --group-name "$name"; fi
}

# What the nodes prove to each other that they know. Whoever may read the machines' metadata reads it.
secret_file=${XDG_STATE_HOME:-$HOME/.local/state}/torshrun/aws-$name.secret
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
