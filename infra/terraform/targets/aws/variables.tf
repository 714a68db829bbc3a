# The size of the cluster and what its machines are. Each refusal is one line with the remedy.

variable "name" {
  description = "Name of the cluster: tag of everything in it, and prefix of its machines' names."
  type        = string
  default     = "headway"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,23}$", var.name))
    error_message = "name=${jsonencode(var.name)} is not a cluster's name; write at most 24 small letters, digits and hyphens."
  }
}

variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"
}

variable "zone" {
  description = "Availability zone, such as us-east-1b; the region's first by default. All machines are in one."
  type        = string
  default     = null
}

variable "nodes" {
  description = "Number of nodes, spares included."
  type        = number
  default     = 3
  validation {
    condition     = var.nodes >= 1 && floor(var.nodes) == var.nodes
    error_message = "nodes=${var.nodes} is not a number of machines; write a whole number from 1."
  }
  validation {
    condition     = var.nodes <= var.max_nodes
    error_message = "nodes=${var.nodes} exceeds max_nodes=${var.max_nodes}; raise max_nodes if your account's quota allows so many machines."
  }
}

variable "max_nodes" {
  description = "Most nodes that may be asked for: your account's quota, or what you are willing to pay for."
  type        = number
  default     = 16
}

variable "instance_type" {
  description = "Type of the nodes; types.json lists the known ones."
  type        = string
  validation {
    condition     = contains(keys(local.types), var.instance_type)
    error_message = "instance_type=${jsonencode(var.instance_type)} is unknown; use one of ${join(", ", keys(local.types))}, or describe it in more_types."
  }
}

variable "more_types" {
  description = "Types that types.json lacks, or other prices for those that it has."
  type = map(object({
    cards        = number
    efa          = bool
    gpus         = number
    usd_per_hour = number
  }))
  default = {}
}

variable "cards" {
  description = "Network cards that a node uses; all that its type has by default."
  type        = number
  default     = null
  validation {
    condition = var.cards == null || try(
      var.cards >= 1 && floor(var.cards) == var.cards && var.cards <= local.types[var.instance_type].cards,
      !contains(keys(local.types), var.instance_type), # which is refused by itself
    )
    error_message = "cards=${coalesce(var.cards, 0)} does not fit ${var.instance_type}; write 1 to ${try(local.types[var.instance_type].cards, 1)}, or leave it out to use all."
  }
}

variable "ami" {
  description = "Image of all machines: Linux x86-64 with systemd, for GPUs with driver and EFA, such as AWS's Deep Learning Base AMI."
  type        = string
  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.ami))
    error_message = "ami=${jsonencode(var.ami)} is not an image; write its id, such as ami-0123456789abcdef0."
  }
}

variable "user" {
  description = "The image's user, who runs Headway."
  type        = string
  default     = "ubuntu"
}

variable "disk_gib" {
  description = "Size of each machine's root disk."
  type        = number
  default     = 200
}

variable "head" {
  description = "Make a head node for the console and the gateway; else use a node for that."
  type        = bool
  default     = true
}

variable "head_type" {
  description = "Type of the head node."
  type        = string
  default     = "m7i.large"
  validation {
    condition     = contains(keys(local.types), var.head_type)
    error_message = "head_type=${jsonencode(var.head_type)} is unknown; use one of ${join(", ", keys(local.types))}, or describe it in more_types."
  }
}

variable "placement_group" {
  description = "Place the nodes close together. By default with EFA and without a reservation: a reservation often spans more than one group."
  type        = bool
  default     = null
}

variable "capacity_reservation" {
  description = "Id of a capacity reservation or capacity block in which the nodes are launched."
  type        = string
  default     = null
  validation {
    condition     = var.capacity_reservation == null || can(regex("^cr-[0-9a-f]{8,17}$", var.capacity_reservation))
    error_message = "capacity_reservation=${jsonencode(var.capacity_reservation)} is not a reservation; write its id, such as cr-0123456789abcdef0."
  }
}

variable "capacity_block" {
  description = "The reservation is a capacity block."
  type        = bool
  default     = false
  validation {
    condition     = !var.capacity_block || var.capacity_reservation != null
    error_message = "capacity_block is set without a capacity_reservation; write the block's id there."
  }
}
