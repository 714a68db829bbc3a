# Emulated nodes on this machine: an init and its executor each, started by `headway node start`.
# Built-in provider only, so `init` downloads nothing.
#
# Drift is found at plan time: nodes/K.json names the executor's pid and start time, and
# /proc/PID/stat shows whether that very process still runs. Its init restarts a dead one at once; if
# that is dead too, the node gets a new incarnation, so the plan replaces just that node.

terraform {
  required_version = ">= 1.9.0"
  backend "local" {}
}

variable "cluster_dir" {
  description = "Folder of the cluster; made if absent."
  type        = string
}

variable "headway" {
  description = "The headway command: a name on the PATH or a path, one word."
  type        = string
  default     = "headway"
}

variable "nodes" {
  description = "Number of nodes, spares included."
  type        = number
  default     = 3
  validation {
    condition     = var.nodes >= 1 && var.nodes <= 64 && floor(var.nodes) == var.nodes
    error_message = "nodes must be a whole number from 1 to 64."
  }
}

locals {
  dir   = abspath(var.cluster_dir)
  names = { for i in range(var.nodes) : tostring(i) => i }
  fact  = { for n, _ in local.names : n => try(jsondecode(file("${local.dir}/nodes/${n}.json")), null) }
  # Field 3 of stat is the state (Z and X are dead, T is stopped: both need a restart; t is held by
  # a debugger), field 22 the start time.
  alive = {
    for n, f in local.fact : n => f != null && try(
      can(regex("\\) [RSDIt] (\\S+ ){18}${f.start_ticks} ", file("/proc/${f.pid}/stat"))), false
    )
  }
  incarnation = {
    for n, ok in local.alive : n => ok
    ? try(trimspace(file("${local.dir}/nodes/${n}.incarnation")), plantimestamp())
    : plantimestamp()
  }
}

# Commands get their words through the environment, so that a folder may have any name.
resource "terraform_data" "cluster" {
  input = { dir = local.dir, headway = var.headway, nodes = var.nodes }
  # A changed number of nodes is an update in place, so the nodes that stay are left alone.
  triggers_replace = [local.dir]
  provisioner "local-exec" {
    command     = "\"$HEADWAY\" cluster create \"$DIR\" --nodes \"$NODES\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir, NODES = self.input.nodes }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$HEADWAY\" cluster remove \"$DIR\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir }
  }
}

resource "terraform_data" "size" {
  depends_on       = [terraform_data.cluster]
  input            = { dir = local.dir, headway = var.headway, nodes = var.nodes }
  triggers_replace = [var.nodes]
  provisioner "local-exec" {
    command     = "\"$HEADWAY\" cluster create \"$DIR\" --nodes \"$NODES\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir, NODES = self.input.nodes }
  }
}

resource "terraform_data" "node" {
  for_each         = local.names
  depends_on       = [terraform_data.size]
  input            = { dir = local.dir, headway = var.headway, node = each.key, incarnation = local.incarnation[each.key] }
  triggers_replace = [local.dir, local.incarnation[each.key]]
  provisioner "local-exec" {
    command = <<-EOT
      "$HEADWAY" node start --cluster "$DIR" --node "$NODE" &&
        printf %s "$INCARNATION" > "$DIR/nodes/$NODE.incarnation"
    EOT
    environment = {
      HEADWAY     = self.input.headway
      DIR         = self.input.dir
      NODE        = self.input.node
      INCARNATION = self.input.incarnation
    }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$HEADWAY\" node stop --cluster \"$DIR\" --node \"$NODE\" --unused"
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir, NODE = self.input.node }
  }
}

output "cluster" {
  description = "What `headway run --cluster` takes."
  value       = terraform_data.cluster.output.dir
}

output "nodes" {
  value = [for n, _ in terraform_data.node : tonumber(n)]
}
