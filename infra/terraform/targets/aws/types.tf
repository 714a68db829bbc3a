# What a type of machine has, and what the cluster costs, from the dated table types.json.

locals {
  table = jsondecode(file("${path.module}/types.json"))
  types = merge(local.table.types, var.more_types)
  type  = local.types[var.instance_type]
  cards = coalesce(var.cards, local.type.cards)

  is_listed   = !contains(keys(var.more_types), var.instance_type)
  head_usd    = var.head ? local.types[var.head_type].usd_per_hour : 0
  network_usd = local.table.usd_per_hour.nat_gateway + 2 * local.table.usd_per_hour.public_address
  disks_usd   = (var.nodes + (var.head ? 1 : 0)) * var.disk_gib * local.table.usd_per_gb_month.disk / 730
  fsx_usd     = var.shared == "fsx" ? var.fsx_gib * local.table.usd_per_gb_month.fsx / 730 : 0
  stopped_usd = local.head_usd + local.network_usd + local.disks_usd + local.fsx_usd
  running_usd = local.stopped_usd + var.nodes * local.type.usd_per_hour

  extra = compact([
    format("list prices of %s as of %s", local.table.region, local.table.as_of),
    local.is_listed ? try("${var.instance_type} is ${local.table.notes[var.instance_type]}", "") : "",
    var.shared == "efs" ? format("/shared is %.2f per GB and month more", local.table.usd_per_gb_month.efs) : "",
  ])
  cost = format(
    "%d x %s at %.2f, the rest %.2f: %.2f USD per hour, %.0f per day; %.2f per hour while the nodes are stopped (%s)",
    var.nodes, var.instance_type, local.type.usd_per_hour, local.stopped_usd,
    local.running_usd, 24 * local.running_usd, local.stopped_usd, join("; ", local.extra),
  )
}
