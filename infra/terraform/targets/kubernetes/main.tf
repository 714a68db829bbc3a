# A namespace of Kubernetes, made ready for runs: the namespace and the claim if they are asked for,
# and the folder of a cluster that `headway run` takes. Built-in provider only.
#
# Drift is found at plan time: door.sh asks the API server and writes seen.json. What has gone gets
# a new incarnation, so the plan replaces just that.

terraform {
  required_version = ">= 1.9.0"
  backend "local" {}
}

variable "cluster_dir" {
  description = "Folder of the cluster, with server.toml, a copy of kubernetes.toml, in it."
  type        = string
}

variable "owner" {
  description = "Id of the cluster: a label of what it makes, so that no other cluster takes it."
  type        = string
}

variable "headway" {
  description = "The headway command: a name on the PATH or a path, one word."
  type        = string
  default     = "headway"
}

variable "python" {
  description = "The Python that has Headway: a name on the PATH or a path, one word."
  type        = string
  default     = "python3"
}

variable "create_namespace" {
  description = "Create the namespace of kubernetes.toml. `down` deletes it with all that it holds."
  type        = bool
  default     = false
}

variable "claim_size" {
  description = "Create the claim of kubernetes.toml with this size, such as 500Gi."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^([1-9][0-9]*(\\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?)?$", var.claim_size))
    error_message = "claim_size must be a size such as 500Gi."
  }
}

variable "storage_class" {
  description = "Storage class of the claim, which must offer ReadWriteMany; empty: the default one."
  type        = string
  default     = ""
}

locals {
  dir  = abspath(var.cluster_dir)
  file = "${local.dir}/server.toml"
  seen = try(jsondecode(file("${local.dir}/seen.json")), {})
  incarnation = {
    for what in ["namespace", "claim"] : what => try(local.seen[what], false)
    ? try(trimspace(file("${local.dir}/${what}.incarnation")), plantimestamp())
    : plantimestamp()
  }
}

# Commands get their words through the environment, so that a folder may have any name.
resource "terraform_data" "namespace" {
  count            = var.create_namespace ? 1 : 0
  input            = { dir = local.dir, file = local.file, python = var.python, owner = var.owner, incarnation = local.incarnation["namespace"] }
  triggers_replace = [local.dir, local.incarnation["namespace"]]
  provisioner "local-exec" {
    command = <<-EOT
      "$PYTHON" -m headway.console.pods create namespace "$FILE" --cluster "$OWNER" &&
        printf %s "$INCARNATION" > "$DIR/namespace.incarnation"
    EOT
    environment = {
      PYTHON      = self.input.python
      DIR         = self.input.dir
      FILE        = self.input.file
      OWNER       = self.input.owner
      INCARNATION = self.input.incarnation
    }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$PYTHON\" -m headway.console.pods delete namespace \"$FILE\" --cluster \"$OWNER\""
    environment = { PYTHON = self.input.python, FILE = self.input.file, OWNER = self.input.owner }
  }
}

resource "terraform_data" "claim" {
  count            = var.claim_size != "" ? 1 : 0
  depends_on       = [terraform_data.namespace]
  input            = { dir = local.dir, file = local.file, python = var.python, owner = var.owner, size = var.claim_size, class = var.storage_class, incarnation = local.incarnation["claim"] }
  triggers_replace = [local.dir, local.incarnation["claim"]]
  lifecycle {
    precondition {
      condition     = contains(["", var.claim_size], try(local.seen.claim_size, ""))
      error_message = "The claim was made with ${try(local.seen.claim_size, "")}: grow it with `kubectl edit pvc`, and leave claim_size as it was."
    }
  }
  provisioner "local-exec" {
    command = <<-EOT
      "$PYTHON" -m headway.console.pods create claim "$FILE" --cluster "$OWNER" --size "$SIZE" --class "$CLASS" &&
        printf %s "$INCARNATION" > "$DIR/claim.incarnation"
    EOT
    environment = {
      PYTHON      = self.input.python
      DIR         = self.input.dir
      FILE        = self.input.file
      OWNER       = self.input.owner
      SIZE        = self.input.size
      CLASS       = self.input.class
      INCARNATION = self.input.incarnation
    }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$PYTHON\" -m headway.console.pods delete claim \"$FILE\" --cluster \"$OWNER\""
    environment = { PYTHON = self.input.python, FILE = self.input.file, OWNER = self.input.owner }
  }
}

resource "terraform_data" "cluster" {
  depends_on       = [terraform_data.claim]
  input            = { dir = local.dir, file = local.file, headway = var.headway }
  triggers_replace = [local.dir]
  provisioner "local-exec" {
    command     = "[ -e \"$DIR/cluster.json\" ] || \"$HEADWAY\" cluster create \"$DIR\" --kubernetes \"$FILE\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir, FILE = self.input.file }
  }
  provisioner "local-exec" {
    when        = destroy
    command     = "\"$HEADWAY\" cluster remove \"$DIR\""
    environment = { HEADWAY = self.input.headway, DIR = self.input.dir }
  }
}

output "cluster" {
  description = "What `headway run --cluster` takes."
  value       = terraform_data.cluster.output.dir
}
