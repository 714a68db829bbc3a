# Who is alerted of what: lost nodes and cost, by one topic; boot messages go to one log group.

resource "aws_cloudwatch_log_group" "cluster" {
  #checkov:skip=CKV_AWS_158:encrypted with the key of AWS; it holds boot and stop messages
  name              = "/headway/${var.name}"
  retention_in_days = var.log_days
}

resource "aws_sns_topic" "alerts" {
  #checkov:skip=CKV_AWS_26:alarms cannot publish to a topic with the key of AWS; it holds no secrets
  name = "${var.name}-alerts"
}

resource "aws_sns_topic_subscription" "email" {
  count     = var.alert_email == "" ? 0 : 1
  topic_arn = aws_sns_topic.alerts.arn
  protocol  = "email"
  endpoint  = var.alert_email
}

# A node that fails AWS's own checks for two minutes. One that was stopped sends nothing, which is
# not an alarm: it was idle, or a hook stopped it.
resource "aws_cloudwatch_metric_alarm" "lost_node" {
  for_each            = aws_instance.node
  alarm_name          = "${local.names[each.key]}-lost"
  alarm_description   = "${local.names[each.key]} fails the status checks of its machine or its system"
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { InstanceId = each.value.id }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alerts.arn]
  ok_actions          = [aws_sns_topic.alerts.arn]
}

# A node that was terminated, which no hook does. A rule takes some 150 instances.
resource "aws_cloudwatch_event_rule" "ended_node" {
  for_each    = { for number, ids in chunklist([for one in aws_instance.node : one.id], 100) : tostring(number) => ids }
  name        = "${var.name}-ended-${each.key}"
  description = "A node of the cluster ${var.name} was terminated"
  event_pattern = jsonencode({
    source      = ["aws.ec2"]
    detail-type = ["EC2 Instance State-change Notification"]
    detail      = { state = ["terminated"], instance-id = each.value }
  })
}

resource "aws_cloudwatch_event_target" "ended_node" {
  for_each = aws_cloudwatch_event_rule.ended_node
  rule     = each.value.name
  arn      = aws_sns_topic.alerts.arn
}

data "aws_iam_policy_document" "alerts" {
  statement {
    sid       = "AlarmsAndBudgets"
    actions   = ["sns:Publish"]
    resources = [aws_sns_topic.alerts.arn]
    principals {
      type        = "Service"
      identifiers = ["budgets.amazonaws.com", "cloudwatch.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.me.account_id]
    }
  }
  statement {
    sid       = "Events"
    actions   = ["sns:Publish"]
    resources = [aws_sns_topic.alerts.arn]
    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
    condition {
      test     = "ArnLike"
      variable = "aws:SourceArn"
      values   = ["${local.arn_prefix}:events:${local.here}:rule/${var.name}-ended-*"]
    }
  }
}

resource "aws_sns_topic_policy" "alerts" {
  arn    = aws_sns_topic.alerts.arn
  policy = data.aws_iam_policy_document.alerts.json
}

# Counts what has the cluster's tag; activate headway-cluster as a cost allocation tag for that.
resource "aws_budgets_budget" "month" {
  count        = var.budget_usd_month > 0 ? 1 : 0
  name         = var.name
  budget_type  = "COST"
  limit_amount = tostring(var.budget_usd_month)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"
  cost_filter {
    name   = "TagKeyValue"
    values = [format("user:headway-cluster$%s", var.name)]
  }
  dynamic "notification" {
    for_each = { ACTUAL = 80, FORECASTED = 100 }
    content {
      notification_type         = notification.key
      threshold                 = notification.value
      threshold_type            = "PERCENTAGE"
      comparison_operator       = "GREATER_THAN"
      subscriber_sns_topic_arns = [aws_sns_topic.alerts.arn]
    }
  }
  depends_on = [aws_sns_topic_policy.alerts]
}
