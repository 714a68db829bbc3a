# A cluster on Slurm: slurm.toml says how each run gets its machines. What is created is the
# cluster's folder here; machines belong to runs. Built-in provider only, so `init` downloads
# nothing.

terraform {
  required_version = ">= 1.9.0"
  backend "local" {}
}

variable "cluster_dir" {
  description = "Folder of the cluster; made if absent."
  type        = string
}

variable "slurm" {
  description = "The file slurm.toml; empty where nothing is to be created."
  type        = string
  default     = ""
}

variable "nodes" {
  description = "The most machines that a run may have; 0 is any number."
  type        = number
  default     = 0
  validation {
    condition     = var.nodes >= 0 && floor(var.nodes) == var.nodes
    error_message = "nodes must be a whole number."
  }
}

variable "headway" {
  description = "The headway command: a name on the PATH or a path, one word."
  type        = string
  default     = "headway"
}

locals {
  dir     = abspath(var.cluster_dir)
  options = var.nodes > 0 ? "--nodes ${var.nodes}" : ""
  file    = try(filesha256(var.slurm), "")
  # A folder without a cluster, as after a failed `up`, is one to create anew.
  incarnation = fileexists("${local.dir}/cluster.json") ? try(file("${local.dir}/incarnation"), plantimestamp()) : plantimestamp()
}

# Commands get their words through the environment, so that a folder may have any name.
resource "terraform_data" "cluster" {
  input            = { dir = local.dir, headway = var.headway, slurm = var.slurm, options = local.options, incarnation = local.incarnation }
  triggers_replace = [local.dir, local.incarnation]
  provisioner "local-exec" {
    command = <<-EOT
      mkdir -p "$DIR" && "$HEADWAY" cluster create "$DIR" --slurm "$SLURM" $OPTIONS &&
        printf %s "$INCARNATION" > "$DIR/incarnation"
    EOT
    environment = {
      HEADWAY     = self.input.headway
      DIR         = self.input.dir
      SLURM       = self.input.slurm
      OPTIONS     = self.input.options
      INCARNATION = self.input.incarnation
    }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$HEADWAY\" cluster remove \"$DIR\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir }
  }
}

# A changed file or number is given to the cluster, which stays: its runs keep their machines.
resource "terraform_data" "settings" {
  depends_on       = [terraform_data.cluster]
  input            = { dir = local.dir, headway = var.headway, slurm = var.slurm, options = local.options }
  triggers_replace = [local.file, var.nodes]
  provisioner "local-exec" {
    command = "\"$HEADWAY\" cluster create \"$DIR\" --slurm \"$SLURM\" $OPTIONS"
    environment = {
      HEADWAY = self.input.headway
      DIR     = self.input.dir
      SLURM   = self.input.slurm
      OPTIONS = self.input.options
    }
  }
}

output "cluster" {
  description = "What `headway run --cluster` takes."
  value       = terraform_data.cluster.output.dir
}

output "settings" {
  description = "Id of what was given to the cluster, which is new when that has changed."
  value       = terraform_data.settings.id
}
