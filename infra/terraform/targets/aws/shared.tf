# /shared: the folder that all machines see. It holds Headway, corpora, runs and checkpoints.

resource "aws_efs_file_system" "shared" {
  #checkov:skip=CKV_AWS_184:encrypted with the key of AWS; a key of one's own costs money after `make down`
  count           = var.shared == "efs" ? 1 : 0
  creation_token  = var.name
  encrypted       = true
  throughput_mode = "elastic"
  tags            = { Name = var.name }
}

resource "aws_efs_mount_target" "shared" {
  count           = var.shared == "efs" ? 1 : 0
  file_system_id  = aws_efs_file_system.shared[0].id
  subnet_id       = aws_subnet.services.id
  ip_address      = local.mount_address
  security_groups = [aws_security_group.cluster.id]
}

resource "aws_fsx_lustre_file_system" "shared" {
  count                       = var.shared == "fsx" ? 1 : 0
  storage_capacity            = var.fsx_gib
  subnet_ids                  = [aws_subnet.services.id]
  security_group_ids          = [aws_security_group.cluster.id]
  deployment_type             = "PERSISTENT_2"
  per_unit_storage_throughput = 250
  data_compression_type       = "LZ4"
  tags                        = { Name = var.name }
  # it takes the addresses that are free
  depends_on = [aws_nat_gateway.out, aws_network_interface.head]
}

locals {
  # The lease of a run needs locks that hold on all machines: `flock` on Lustre.
  mount = var.shared == "efs" ? {
    kind    = "nfs4"
    source  = "${local.mount_address}:/"
    options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
    } : {
    kind    = "lustre"
    source  = "${one(aws_fsx_lustre_file_system.shared[*].dns_name)}@tcp:/${one(aws_fsx_lustre_file_system.shared[*].mount_name)}"
    options = "relatime,flock,_netdev"
  }
}
