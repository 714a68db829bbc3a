# Node K: one instance from the one launch template, with network cards of its own. Card 0 has a
# fixed private address, which outlives the instance: one that is made again takes it over.
# (EC2 accepts no address beside a template's network cards, so the cards are not in the template.)

locals {
  names      = { for k in range(var.nodes) : tostring(k) => "${var.name}-${k}" }
  addresses  = { for k in range(var.nodes) : tostring(k) => cidrhost(local.fabric, 16 + k) }
  node_cards = { for pair in setproduct(keys(local.names), range(local.cards)) : "${pair[0]}.${pair[1]}" => { node = pair[0], card = tonumber(pair[1]) } }
  kind       = "${var.instance_type} ${var.ami} ${var.disk_gib} GiB, ${local.cards} cards"
  is_grouped = coalesce(var.placement_group, local.type.efa && var.capacity_reservation == null)
}

resource "aws_placement_group" "nodes" {
  count    = local.is_grouped ? 1 : 0
  name     = var.name
  strategy = "cluster"
}

resource "aws_network_interface" "card" {
  for_each        = local.node_cards
  subnet_id       = aws_subnet.nodes.id
  security_groups = [aws_security_group.cluster.id]
  # Without EFA, a plain one. Only the first card needs an address: ranks use EFA on the others.
  interface_type = local.type.efa ? (each.value.card == 0 ? "efa" : "efa-only") : null
  private_ips    = each.value.card == 0 ? [local.addresses[each.value.node]] : null
  description    = "card ${each.value.card} of ${local.names[each.value.node]}"
  tags           = { Name = local.names[each.value.node] }
}

resource "aws_launch_template" "node" {
  name                                 = "${var.name}-node"
  image_id                             = var.ami
  instance_type                        = var.instance_type
  update_default_version               = true
  ebs_optimized                        = true
  instance_initiated_shutdown_behavior = "stop" # how an idle node stops itself
  user_data                            = base64encode(local.boot["node"])

  iam_instance_profile { arn = aws_iam_instance_profile.machine["node"].arn }
  monitoring { enabled = true }
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled" # a machine learns its name there
  }
  block_device_mappings {
    device_name = "/dev/sda1"
    ebs {
      volume_size           = var.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }
  dynamic "placement" {
    for_each = aws_placement_group.nodes
    content { group_name = placement.value.name }
  }
  dynamic "capacity_reservation_specification" {
    for_each = var.capacity_reservation == null ? [] : [var.capacity_reservation]
    content {
      capacity_reservation_target { capacity_reservation_id = capacity_reservation_specification.value }
    }
  }
  dynamic "instance_market_options" {
    for_each = var.capacity_block ? ["capacity-block"] : []
    content { market_type = instance_market_options.value }
  }
  tag_specifications { # the instance has its own
    resource_type = "volume"
    tags          = local.tags
  }
}

# A change of these makes the nodes anew; any other change of the template is for later nodes only.
resource "terraform_data" "kind" {
  input = local.kind
}

resource "aws_instance" "node" {
  #checkov:skip=CKV_AWS_8:the launch template encrypts the disk
  #checkov:skip=CKV_AWS_79:the launch template requires a token
  #checkov:skip=CKV_AWS_126:the launch template monitors in detail
  #checkov:skip=CKV_AWS_135:the launch template is EBS optimized
  #checkov:skip=CKV2_AWS_41:the launch template has the role
  for_each = local.names
  launch_template {
    id      = aws_launch_template.node.id
    version = aws_launch_template.node.latest_version
  }
  dynamic "network_interface" {
    for_each = range(local.cards)
    content {
      network_interface_id = aws_network_interface.card["${each.key}.${network_interface.value}"].id
      network_card_index   = network_interface.value
      device_index         = network_interface.value == 0 ? 0 : 1
    }
  }
  tags = { Name = each.value }
  # what its first boot needs
  depends_on = [aws_route_table_association.nodes, aws_iam_role_policy.machine, aws_efs_mount_target.shared]
  lifecycle {
    ignore_changes       = [launch_template, user_data]
    replace_triggered_by = [terraform_data.kind]
  }
}

# A node that stopped, because it was idle or by a hook, runs again after `make up`.
resource "aws_ec2_instance_state" "node" {
  for_each    = aws_instance.node
  instance_id = each.value.id
  state       = "running"
}
