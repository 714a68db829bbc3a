# Network, shared folder, costs and software: what rarely needs another value.

variable "network" {
  description = "Address range of the cluster; its upper half is the nodes'."
  type        = string
  default     = "10.42.0.0/16"
  validation {
    condition     = can(cidrhost(var.network, 0)) && try(tonumber(split("/", var.network)[1]) >= 16 && tonumber(split("/", var.network)[1]) <= 26, false)
    error_message = "network=${jsonencode(var.network)} is not a usable address range; write one from /16 to /26, such as 10.42.0.0/16."
  }
  validation {
    # node K has address 16 + K of the upper half; its last address is the broadcast one
    condition     = try(var.nodes + 17 <= pow(2, 31 - tonumber(split("/", var.network)[1])), true)
    error_message = "network=${jsonencode(var.network)} is too small for ${var.nodes} nodes; write one with a shorter prefix, such as 10.42.0.0/16."
  }
}

variable "shared" {
  description = "File system behind /shared: efs, or fsx (Lustre, faster, billed by its size)."
  type        = string
  default     = "efs"
  validation {
    condition     = contains(["efs", "fsx"], var.shared)
    error_message = "shared=${jsonencode(var.shared)} is not a file system; write efs or fsx."
  }
}

variable "fsx_gib" {
  description = "Size of FSx for Lustre: 1200, or a multiple of 2400."
  type        = number
  default     = 4800
  validation {
    condition     = var.fsx_gib == 1200 || (var.fsx_gib >= 2400 && var.fsx_gib % 2400 == 0)
    error_message = "fsx_gib=${var.fsx_gib} is not a size of FSx; write 1200 or a multiple of 2400."
  }
}

variable "idle_stop_min" {
  description = "Minutes without a run after which a node stops itself (the head node stays); 0: never."
  type        = number
  default     = 60
  validation {
    condition     = var.idle_stop_min == 0 || (var.idle_stop_min >= 10 && floor(var.idle_stop_min) == var.idle_stop_min)
    error_message = "idle_stop_min=${var.idle_stop_min} leaves no time to start a run; write 0 for never, or at least 10 minutes."
  }
}

variable "budget_usd_month" {
  description = "Send an alert when the cluster's cost of a month reaches 80 % of this, or is forecast to exceed it; 0: no budget."
  type        = number
  default     = 0
  validation {
    condition     = var.budget_usd_month >= 0
    error_message = "budget_usd_month=${var.budget_usd_month} is negative; write the dollars per month, or 0 for no budget."
  }
}

variable "alert_email" {
  description = "Receives the alerts of lost nodes and of the budget; AWS asks it to confirm."
  type        = string
  default     = ""
  validation {
    condition     = var.alert_email == "" || can(regex("^[^@ ]+@[^@ ]+$", var.alert_email))
    error_message = "alert_email=${jsonencode(var.alert_email)} is not an address; write one, or leave it out."
  }
}

variable "log_days" {
  description = "Days that the machines' boot and stop messages are kept."
  type        = number
  default     = 365
}

variable "python" {
  description = "Python of the Headway installation on each machine."
  type        = string
  default     = "/shared/src/.venv/bin/python"
}

variable "repository" {
  description = "Git URL of Headway; the head node installs it in /shared/src at its first boot. Empty: you do."
  type        = string
  default     = ""
}

variable "revision" {
  description = "Branch, tag or commit of the repository."
  type        = string
  default     = "main"
}
