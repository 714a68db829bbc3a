# What `headway` and door.sh read.

locals {
  hosts_toml = join("\n", concat(
    [
      "# The machines of the cluster ${var.name}. `make up` writes this file.",
      "shared = \"/shared/headway\"",
      "python = ${jsonencode(var.python)}",
      "fence = [\"/opt/headway/machine\", \"fence\", \"{name}\"]",
      "replace = [\"/opt/headway/machine\", \"replace\", \"{name}\", \"{reason}\"]",
    ],
    [for k in range(var.nodes) : "\n[[hosts]]\nname = ${jsonencode(local.names[tostring(k)])}"],
    [""],
  ))
  place = join(" ", [
    var.name, "in", var.region, coalesce(var.zone, "first zone"), var.network, "on", var.shared,
  ])
  run = "headway run examples/tiny.toml --cluster /shared/cluster --set launch.interface=${local.fabric}"
}

output "hosts_toml" {
  description = "The file hosts.toml of the ssh engine."
  value       = local.hosts_toml
}

output "nodes" {
  description = "Numbers of the nodes."
  value       = range(var.nodes)
}

output "addresses" {
  description = "Fixed private address of each node."
  value       = local.addresses
}

output "head" {
  description = "Id of the instance in which `make ssh` opens a shell."
  value       = var.head ? aws_instance.head[0].id : aws_instance.node["0"].id
}

output "bucket" {
  description = "Bucket with Terraform's state, hosts.toml and data/."
  value       = aws_s3_bucket.cluster.id
}

output "log_group" {
  description = "Log group of boots and stops."
  value       = aws_cloudwatch_log_group.cluster.name
}

output "cards" {
  description = "Network cards of each node."
  value       = local.cards
}

output "run" {
  description = "The command that trains on the cluster, on the head node."
  value       = local.run
}

output "kind" {
  description = "What all nodes are made of; another one makes them anew."
  value       = local.kind
}

output "place" {
  description = "Where the cluster and /shared are; another one would make both anew."
  value       = local.place
}

output "cost" {
  description = "What the cluster costs, by the table of types.json."
  value       = local.cost
}
