# The head node: console, gateway, and the place where Headway is installed into /shared.

resource "aws_network_interface" "head" {
  count           = var.head ? 1 : 0
  subnet_id       = aws_subnet.services.id
  security_groups = [aws_security_group.cluster.id]
  private_ips     = [local.head_address]
  description     = "the head node"
  tags            = { Name = "${var.name}-head" }
}

# For its way out: nothing may connect to it.
resource "aws_eip" "head" {
  count             = var.head ? 1 : 0
  domain            = "vpc"
  network_interface = aws_network_interface.head[0].id
  tags              = { Name = "${var.name}-head" }
  depends_on        = [aws_internet_gateway.out]
}

resource "aws_instance" "head" {
  count                       = var.head ? 1 : 0
  ami                         = var.ami
  instance_type               = var.head_type
  iam_instance_profile        = aws_iam_instance_profile.machine["head"].name
  ebs_optimized               = true
  monitoring                  = true
  user_data                   = local.boot["head"]
  user_data_replace_on_change = false
  network_interface {
    network_interface_id = aws_network_interface.head[0].id
    device_index         = 0
  }
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled"
  }
  root_block_device {
    volume_size = var.disk_gib
    volume_type = "gp3"
    encrypted   = true
    tags        = local.tags
  }
  tags       = { Name = "${var.name}-head" }
  depends_on = [aws_eip.head, aws_route_table_association.services, aws_iam_role_policy.machine, aws_efs_mount_target.shared]
  lifecycle { ignore_changes = [ami, user_data] } # it boots once, and what is on it stays
}

resource "aws_ec2_instance_state" "head" {
  count       = var.head ? 1 : 0
  instance_id = aws_instance.head[0].id
  state       = "running"
}

# ---------------------------------------------------------------- first boot
locals {
  boot = {
    for kind in ["head", "node"] : kind => templatefile("${path.module}/scripts/boot.sh.tftpl", {
      kind      = kind
      name      = var.name
      region    = var.region
      bucket    = aws_s3_bucket.cluster.id
      log_group = aws_cloudwatch_log_group.cluster.name
      user      = var.user
      mount     = local.mount
      head      = local.head_address
      first     = cidrhost(local.fabric, 16)
      # not var.nodes: the nodes that exist must not change when one is added
      addresses  = min(pow(2, 31 - tonumber(split("/", var.network)[1])) - 17, 4096)
      idle_min   = var.idle_stop_min
      repository = var.repository
      revision   = var.revision
      run        = local.run
      machine    = file("${path.module}/scripts/machine.sh")
      idle       = file("${path.module}/scripts/idle.sh")
      cluster    = file("${path.module}/scripts/cluster.sh")
    })
  }
}
