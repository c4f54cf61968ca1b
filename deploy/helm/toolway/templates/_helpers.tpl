{{- define "toolway.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name }}{{ end -}}
{{- end }}

{{- define "toolway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "toolway.labels" -}}
{{ include "toolway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "toolway.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{- define "toolway.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "toolway.name" .) -}}
{{- end }}

{{/* Name of each secret: an existing one, or the one that this chart creates. */}}
{{- define "toolway.databaseSecret" -}}
{{- .Values.database.existingSecret | default (printf "%s-secrets" (include "toolway.name" .)) -}}
{{- end }}
{{- define "toolway.databaseKey" -}}
{{- ternary .Values.database.key "database" (ne .Values.database.existingSecret "") -}}
{{- end }}
{{- define "toolway.clusterSecret" -}}
{{- .Values.cluster.existingSecret | default (printf "%s-secrets" (include "toolway.name" .)) -}}
{{- end }}
{{- define "toolway.clusterKey" -}}
{{- ternary .Values.cluster.key "cluster.key" (ne .Values.cluster.existingSecret "") -}}
{{- end }}
{{- define "toolway.configSecret" -}}
{{- .Values.existingConfigSecret | default (printf "%s-config" (include "toolway.name" .)) -}}
{{- end }}

{{/* The config file; the host names of the service and the ingress are added to toolway.gateway.hosts. */}}
{{- define "toolway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $toolway := dig "toolway" dict $config -}}
{{- $gateway := dig "gateway" dict $toolway -}}
{{- $service := include "toolway.name" . -}}
{{- $own := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) -}}
{{- if .Values.ingress.host }}{{ $own = append $own .Values.ingress.host }}{{ end -}}
{{- $hosts := concat (dig "hosts" list $gateway) .Values.hosts $own | uniq -}}
{{- $_ := set $gateway "hosts" $hosts -}}
{{- $_ := set $toolway "gateway" $gateway -}}
{{- $_ := set $config "toolway" $toolway -}}
{{- toPrettyJson $config -}}
{{- end }}
