{{- define "evertick.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "evertick.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "evertick.labels" -}}
{{ include "evertick.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "evertick.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What pods of all roles have: not root, nothing writable but /tmp, no token of Kubernetes. */}}
{{- define "evertick.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "evertick.container" -}}
image: {{ include "evertick.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .Values.extraEnvFrom }}
envFrom: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "evertick.secrets" -}}
- name: EVERTICK_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret: name a secret with the URL of the database" .root.Values.database.existingSecret }}
      key: {{ .urlKey }}
- name: EVERTICK_SECRET_KEY
  valueFrom:
    secretKeyRef:
      name: {{ required "secretKey.existingSecret: name a secret with the key that encrypts webhook secrets" .root.Values.secretKey.existingSecret }}
      key: {{ .root.Values.secretKey.key }}
{{- range $name, $value := .root.Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* The deployment of a role, with its disruption budget. `role`, `command` and `values` are the role's own. */}}
{{- define "evertick.deployment" -}}
{{- $tls := and (eq .role "api") .values.tls.existingSecret -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "evertick.name" .root }}-{{ .role }}
  labels: {{ include "evertick.labels" . | nindent 4 }}
spec:
  {{- if not (dig "autoscaling" "enabled" false .values) }}
  replicas: {{ .values.replicas }}
  {{- end }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels: {{ include "evertick.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{ include "evertick.labels" . | nindent 8 }}
      {{- with .values.podAnnotations }}
      annotations: {{ toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "evertick.pod" .root | nindent 6 }}
      terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{ include "evertick.selector" . | nindent 14 }}
      containers:
        - name: {{ .role }}
          {{- include "evertick.container" .root | nindent 10 }}
          args: {{ toJson .command }}
          env:
            {{- include "evertick.secrets" (dict "root" .root "urlKey" .root.Values.database.urlKey) | nindent 12 }}
            {{- with .root.Values.metrics }}
            {{- if .enabled }}
            - {name: EVERTICK_METRICS_HOST, value: "0.0.0.0"}
            - {name: EVERTICK_METRICS_PORT, value: {{ .port | quote }}}
            {{- if or .existingSecret (not .open) }}
            - name: EVERTICK_METRICS_KEY
              valueFrom:
                secretKeyRef:
                  name: {{ required "metrics.existingSecret: name a secret with the key that readers of metrics send, or set metrics.open" .existingSecret }}
                  key: {{ .key }}
            {{- else }}
            - {name: EVERTICK_METRICS_OPEN, value: "true"}
            {{- end }}
            {{- end }}
            {{- end }}
            {{- if $tls }}
            - {name: EVERTICK_TLS_CERT, value: /etc/evertick/tls/tls.crt}
            - {name: EVERTICK_TLS_KEY, value: /etc/evertick/tls/tls.key}
            {{- end }}
          {{- if or (eq .role "api") .root.Values.metrics.enabled }}
          ports:
            {{- if eq .role "api" }}
            - {name: http, containerPort: 8700}
            {{- end }}
            {{- if .root.Values.metrics.enabled }}
            - {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
            {{- end }}
          {{- end }}
          {{- if eq .role "api" }}
          startupProbe:
            httpGet: {path: /livez, port: http, scheme: {{ ternary "HTTPS" "HTTP" (not (not $tls)) }}}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /livez, port: http, scheme: {{ ternary "HTTPS" "HTTP" (not (not $tls)) }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http, scheme: {{ ternary "HTTPS" "HTTP" (not (not $tls)) }}}
            periodSeconds: 5
            timeoutSeconds: 5
          {{- else }}
          startupProbe:
            exec: {command: [evertick, health]}
            periodSeconds: 5
            timeoutSeconds: 10
            failureThreshold: 24
          livenessProbe:
            exec: {command: [evertick, health]}
            periodSeconds: 30
            timeoutSeconds: 10
            failureThreshold: 3
          {{- end }}
          resources: {{ toYaml .values.resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if $tls }}
            - {name: tls, mountPath: /etc/evertick/tls, readOnly: true}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- if $tls }}
        - name: tls
          secret: {secretName: {{ .values.tls.existingSecret }}, defaultMode: 0440}
        {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{ toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.affinity }}
      affinity: {{ toYaml . | nindent 8 }}
      {{- end }}
{{- if .root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "evertick.name" .root }}-{{ .role }}
  labels: {{ include "evertick.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{ include "evertick.selector" . | nindent 6 }}
{{- end }}
{{- end }}
