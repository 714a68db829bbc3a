# Machines that exist and are reached by ssh, or by another command: hosts.toml lists them. Nothing
# runs on an idle one, so what is created is the cluster's folder here, and the knowledge of what
# each machine had when it was checked. Built-in provider only, so `init` downloads nothing.
#
# Drift: `headway cluster status` asks every machine and writes machines.json, which a plan compares.
# A machine that does not answer, or fails the check, is one to replace; so is one whose
# installation or GPUs are others than at the last `up`.

terraform {
  required_version = ">= 1.9.0"
  backend "local" {}
}

variable "cluster_dir" {
  description = "Folder of the cluster; made if absent."
  type        = string
}

variable "hosts" {
  description = "The file hosts.toml; empty where nothing is to be created."
  type        = string
  default     = ""
}

variable "nodes" {
  description = "How many of its machines, from the first on; 0 is all."
  type        = number
  default     = 0
  validation {
    condition     = var.nodes >= 0 && floor(var.nodes) == var.nodes
    error_message = "nodes must be a whole number."
  }
}

variable "facts" {
  description = "What `headway cluster check --save` has written; in the cluster's folder by default."
  type        = string
  default     = null
}

variable "headway" {
  description = "The headway command: a name on the PATH or a path, one word."
  type        = string
  default     = "headway"
}

locals {
  dir      = abspath(var.cluster_dir)
  facts    = try(jsondecode(file(coalesce(var.facts, "${local.dir}/machines.json"))).machines, [])
  names    = [for one in local.facts : one.name]
  machines = { for one in local.facts : one.name => one }
  # A list that is gone is as it was: only `up` needs it.
  list = try(filesha256(var.hosts), "")
  # A folder without a cluster, as after a failed `up`, is one to create anew.
  incarnation = fileexists("${local.dir}/cluster.json") ? try(file("${local.dir}/incarnation"), plantimestamp()) : plantimestamp()
}

# Commands get their words through the environment, so that a folder may have any name.
resource "terraform_data" "cluster" {
  input            = { dir = local.dir, headway = var.headway, hosts = var.hosts, nodes = length(local.names), incarnation = local.incarnation }
  triggers_replace = [local.dir, local.incarnation]
  provisioner "local-exec" {
    command = <<-EOT
      mkdir -p "$DIR" && "$HEADWAY" cluster create "$DIR" --hosts "$HOSTS" --nodes "$NODES" &&
        printf %s "$INCARNATION" > "$DIR/incarnation"
    EOT
    environment = {
      HEADWAY     = self.input.headway
      DIR         = self.input.dir
      HOSTS       = self.input.hosts
      NODES       = self.input.nodes
      INCARNATION = self.input.incarnation
    }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$HEADWAY\" cluster remove \"$DIR\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir }
  }
}

# A changed list is given to the cluster, which stays: its runs keep their machines.
resource "terraform_data" "list" {
  depends_on       = [terraform_data.cluster]
  input            = { dir = local.dir, headway = var.headway, hosts = var.hosts, nodes = length(local.names) }
  triggers_replace = [local.list, local.names]
  provisioner "local-exec" {
    command = "\"$HEADWAY\" cluster create \"$DIR\" --hosts \"$HOSTS\" --nodes \"$NODES\""
    environment = {
      HEADWAY = self.input.headway
      DIR     = self.input.dir
      HOSTS   = self.input.hosts
      NODES   = self.input.nodes
    }
  }
}

resource "terraform_data" "machine" {
  for_each   = local.machines
  depends_on = [terraform_data.list]
  input      = { name = each.key, installed = each.value.installed, gpus = each.value.gpus }
  triggers_replace = [
    each.value.trouble == "" ? "${each.value.installed}, ${each.value.gpus} GPUs" : plantimestamp()
  ]
}

output "cluster" {
  description = "What `headway run --cluster` takes."
  value       = terraform_data.cluster.output.dir
}

output "machines" {
  description = "Name of each machine and the id of its resource, which is new when it has changed."
  value       = { for name, one in terraform_data.machine : name => one.id }
}
