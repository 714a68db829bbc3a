# One zone, two subnets: services (head node, NAT, shared folder) and nodes, which have no public
# address. Nobody can connect from outside: `make ssh` uses AWS Systems Manager.

locals {
  zone     = coalesce(var.zone, "${var.region}a")
  services = cidrsubnet(var.network, 1, 0)
  fabric   = cidrsubnet(var.network, 1, 1)
  # Fixed, so that no address that AWS chooses is in the way of a machine that is made again.
  head_address  = cidrhost(local.services, 10)
  nat_address   = cidrhost(local.services, 11)
  mount_address = cidrhost(local.services, 12)
}

resource "aws_vpc" "cluster" {
  #checkov:skip=CKV2_AWS_11:nobody can connect from outside, and a log of all flows of a training run costs more than it shows
  cidr_block           = var.network
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = { Name = var.name }
}

# Without rules: whatever forgets to name a group can talk to nobody.
resource "aws_default_security_group" "none" {
  vpc_id = aws_vpc.cluster.id
}

resource "aws_subnet" "services" {
  vpc_id            = aws_vpc.cluster.id
  cidr_block        = local.services
  availability_zone = local.zone
  tags              = { Name = "${var.name}-services" }
}

resource "aws_subnet" "nodes" {
  vpc_id            = aws_vpc.cluster.id
  cidr_block        = local.fabric
  availability_zone = local.zone
  tags              = { Name = "${var.name}-nodes" }
}

resource "aws_internet_gateway" "out" {
  vpc_id = aws_vpc.cluster.id
  tags   = { Name = var.name }
}

resource "aws_eip" "nat" {
  domain = "vpc"
  tags   = { Name = "${var.name}-nat" }
}

# Instances with several network cards cannot have a public address, hence NAT.
resource "aws_nat_gateway" "out" {
  subnet_id     = aws_subnet.services.id
  allocation_id = aws_eip.nat.id
  private_ip    = local.nat_address
  depends_on    = [aws_internet_gateway.out]
  tags          = { Name = var.name }
}

resource "aws_route_table" "services" {
  vpc_id = aws_vpc.cluster.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.out.id
  }
  tags = { Name = "${var.name}-services" }
}

resource "aws_route_table" "nodes" {
  vpc_id = aws_vpc.cluster.id
  route {
    cidr_block     = "0.0.0.0/0"
    nat_gateway_id = aws_nat_gateway.out.id
  }
  tags = { Name = "${var.name}-nodes" }
}

resource "aws_route_table_association" "services" {
  subnet_id      = aws_subnet.services.id
  route_table_id = aws_route_table.services.id
}

resource "aws_route_table_association" "nodes" {
  subnet_id      = aws_subnet.nodes.id
  route_table_id = aws_route_table.nodes.id
}

# Checkpoints that are copied to the bucket do not pass the NAT gateway, which bills each GB.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.cluster.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.services.id, aws_route_table.nodes.id]
  tags              = { Name = var.name }
}

# EFA needs a group that admits and emits every protocol from and to itself.
resource "aws_security_group" "cluster" {
  name        = var.name
  description = "Everything between the machines of the cluster"
  vpc_id      = aws_vpc.cluster.id
  tags        = { Name = var.name }
}

resource "aws_vpc_security_group_ingress_rule" "self" {
  security_group_id            = aws_security_group.cluster.id
  referenced_security_group_id = aws_security_group.cluster.id
  ip_protocol                  = "-1"
  description                  = "from each machine of the cluster"
}

resource "aws_vpc_security_group_egress_rule" "self" {
  security_group_id            = aws_security_group.cluster.id
  referenced_security_group_id = aws_security_group.cluster.id
  ip_protocol                  = "-1"
  description                  = "to each machine of the cluster"
}

resource "aws_vpc_security_group_egress_rule" "web" {
  for_each          = toset(["80", "443"])
  security_group_id = aws_security_group.cluster.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = tonumber(each.key)
  to_port           = tonumber(each.key)
  description       = "packages and AWS itself"
}
